// SPDX-License-Identifier: Apache-2.0

// Package ebpfvm interprets programs of the hooks XDP and TC in user space (RFC 9669), and counts the instructions that
// a packet takes through them. It is for tests. Maps are those of the kernel: elements are read when the program looks
// them up, and what it writes stays in the interpreter, so that the kernel can run the same packet on the same state,
// and the two can be compared.
//
// A call of a helper counts as one instruction. Code that the verifier removes, jumps on constants above all, counts
// too.
package ebpfvm
