// SPDX-License-Identifier: Apache-2.0

package executable

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// Constants that programs hand to the kernel (asm-generic).
const (
	fionread  = 0x541b // ioctl(2)
	atMark    = 0x8905 // SIOCATMARK of ioctl(2)
	spliceX86 = 275    // system calls by number, of programs without a C library that could be asked
	spliceARM = 76
)

// code finds constants in the machine code of an architecture.
type code interface {
	// mark notes what the code uses; static: the program makes its system calls itself.
	mark(uses map[string]bool, text []byte, static bool)
	// stubs finds those of the slots in a procedure linkage table.
	stubs(r *receivers, plt []byte, address uint64)
	// receives notes the flags with which text calls what receives.
	receives(uses map[string]bool, r *receivers, text []byte, address uint64)
}

func codeOf(machine elf.Machine) code {
	switch machine {
	case elf.EM_X86_64:
		return x86{}
	case elf.EM_AARCH64:
		return arm64{}
	}
	return nil
}

type x86 struct{}

func (c x86) mark(uses map[string]bool, text []byte, static bool) {
	for constant, what := range map[uint32]string{fionread: Queued, atMark: Urgent} {
		uses[what] = uses[what] || c.loads(text, constant, func([]byte) bool { return true })
		if !uses[what] {
			delete(uses, what)
		}
	}
	if static && !uses[Splice] && c.loads(text, spliceX86, c.calls) {
		uses[Splice] = true
	}
}

// loads reports whether a register is given the constant, by MOV r32, imm32 (B8+r) or MOV r64, imm32 (C7 /0), and what
// is behind it satisfies then.
func (x86) loads(text []byte, constant uint32, then func(rest []byte) bool) bool {
	var imm [4]byte
	binary.LittleEndian.PutUint32(imm[:], constant)
	for from := 0; ; {
		i := bytes.Index(text[from:], imm[:])
		if i < 0 {
			return false
		}
		i += from
		from = i + 1
		if isMove(text[max(0, i-4):i]) && then(text[i+len(imm):]) {
			return true
		}
	}
}

// isMove reports whether what is in front of a constant makes it an operand of MOV to a register.
func isMove(before []byte) bool {
	n := len(before)
	return n >= 1 && before[n-1]&0xf8 == 0xb8 || n >= 2 && before[n-2] == 0xc7 && before[n-1]&0xf8 == 0xc0
}

// calls: SYSCALL follows soon.
func (x86) calls(rest []byte) bool {
	return bytes.Contains(rest[:min(len(rest), 24)], []byte{0x0f, 0x05})
}

type arm64 struct{}

func (c arm64) mark(uses map[string]bool, text []byte, static bool) {
	var window [4]uint32 // instructions before
	for i := 0; i+4 <= len(text); i += 4 {
		op := binary.LittleEndian.Uint32(text[i:])
		constant, moves := moved(op)
		switch {
		case moves && constant == fionread:
			uses[Queued] = true
		case moves && constant == atMark:
			uses[Urgent] = true
		case static && op == 0xd4000001: // SVC #0
			for _, before := range window {
				if n, ok := moved(before); ok && n == spliceARM && before&31 == 8 { // the number is in x8
					uses[Splice] = true
				}
			}
		}
		copy(window[:], window[1:])
		window[len(window)-1] = op
	}
}

// moved is the constant of MOVZ Wd, #imm16 or MOVZ Xd, #imm16 without a shift.
func moved(op uint32) (constant uint32, ok bool) {
	return op >> 5 & 0xffff, op&0x7fe00000 == 0x52800000
}
