// SPDX-License-Identifier: Apache-2.0

// Package optimize shortens the entry of a linked chain, in which functions that were compiled apart stand behind each
// other: it accesses the frame without a pointer that was passed in a register, keeps what the frame is known to hold
// from being written again, and removes branches that are decided, and writes that nothing reads. The verifier checks
// the result as it would check any program.
package optimize
