// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// x32 is the bit in the numbers of a second set of system calls, which no filter by the others' numbers would meet.
const x32 = 0x40000000

// deniedHere are denied system calls that arm64 does not have.
var deniedHere = []uint32{unix.SYS_IOPERM, unix.SYS_IOPL, unix.SYS_MODIFY_LDT}

// guard ends processes that make system calls by another set of numbers, and loads the number.
func guard() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AUDIT_ARCH_X86_64, SkipTrue: 1},
		kill,
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: x32, SkipTrue: 1},
		kill,
	}
}
