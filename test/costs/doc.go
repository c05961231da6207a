// SPDX-License-Identifier: Apache-2.0

// Package costs compares the verifier's cost of chains with verified.txt, and the instructions that packets execute
// with executed.txt. The verifier's numbers are those of Linux 6.12, since other verifiers count differently: `make
// costs` runs that comparison on this kernel, emulated. Executed instructions are counted by an interpreter, which the
// tests compare with the running kernel. maps.txt has the maps that chains use, of which a program may have 64.
package costs
