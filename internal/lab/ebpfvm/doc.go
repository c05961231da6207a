// SPDX-License-Identifier: Apache-2.0

// Package ebpfvm interprets XDP and TC programs in user space (RFC 9669), and counts the executed instructions per
// packet, for tests. It uses the kernel's maps: it reads elements when the program looks them up, and keeps writes in
// the interpreter, so that the kernel can run the same packet on the same state, and the results can be compared.
//
// A helper call counts as one instruction. Code that the verifier removes, mainly jumps on constants, counts too.
package ebpfvm
