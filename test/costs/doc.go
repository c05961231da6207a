// SPDX-License-Identifier: Apache-2.0

// Package costs compares what the verifier spends on chains with verified.txt, and what packets execute with
// executed.txt. The numbers of the verifier are those of Linux 6.12, as other verifiers count otherwise: `make costs`
// runs that comparison on this kernel, emulated. Executed instructions are counted by an interpreter, which the tests
// compare with the running kernel. maps.txt has the maps that chains use, of which a program may have 64.
package costs
