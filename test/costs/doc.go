// SPDX-License-Identifier: Apache-2.0

// Package costs compares what the verifier spends on chains with verified.txt. The numbers are those of Linux 6.12, as
// other verifiers count otherwise: `make costs` runs the comparison on that kernel, emulated.
package costs
