// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// deniedHere are denied system calls that amd64 does not have.
var deniedHere []uint32

// guard ends processes that make system calls by another set of numbers, and loads the number.
func guard() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AUDIT_ARCH_AARCH64, SkipTrue: 1},
		kill,
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
	}
}
