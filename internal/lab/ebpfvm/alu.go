// SPDX-License-Identifier: Apache-2.0

package ebpfvm

import (
	"math/bits"
)

func signed(n uint64, width int) uint64 {
	shift := 64 - width
	return uint64(int64(n<<shift) >> shift)
}

// alu executes an instruction of the arithmetic classes.
func alu(i instruction, wide bool, a, b uint64) uint64 {
	if i.op&0xf0 == 0xd0 {
		return swap(i, wide, a)
	}
	if !wide {
		a, b = uint64(uint32(a)), uint64(uint32(b))
	}
	mask, width := uint64(63), 64
	if !wide {
		mask, width = 31, 32
	}
	var n uint64
	switch i.op & 0xf0 {
	case 0x00:
		n = a + b
	case 0x10:
		n = a - b
	case 0x20:
		n = a * b
	case 0x30, 0x90:
		n = divide(i.op&0xf0 == 0x90, i.offset == 1, width, a, b)
	case 0x40:
		n = a | b
	case 0x50:
		n = a & b
	case 0x60:
		n = a << (b & mask)
	case 0x70:
		n = a >> (b & mask)
	case 0x80:
		n = -a
	case 0xa0:
		n = a ^ b
	case 0xb0:
		if n = b; i.offset != 0 {
			n = signed(b, int(i.offset))
		}
	case 0xc0:
		n = uint64(int64(signed(a, width)) >> (b & mask))
	default:
		fail("%w %#x", errInstruction, i.op)
	}
	if !wide {
		n = uint64(uint32(n))
	}
	return n
}

// divide returns a quotient or a remainder. All inputs are defined: x/0 is 0, x%0 is x.
func divide(remainder, isSigned bool, width int, a, b uint64) uint64 {
	if b == 0 {
		if remainder {
			return a
		}
		return 0
	}
	if !isSigned {
		if remainder {
			return a % b
		}
		return a / b
	}
	x, y := int64(signed(a, width)), int64(signed(b, width))
	if y == -1 { // the negation of the minimum overflows
		if remainder {
			return 0
		}
		return uint64(-x)
	}
	if remainder {
		return uint64(x % y)
	}
	return uint64(x / y)
}

// swap converts the byte order: to little endian (0), to big endian (8), or, in the 64-bit class, always.
func swap(i instruction, wide bool, a uint64) uint64 {
	turn := wide || i.op&8 != 0
	if bigEndian {
		turn = wide || i.op&8 == 0
	}
	switch {
	case i.imm == 16 && turn:
		return uint64(bits.ReverseBytes16(uint16(a)))
	case i.imm == 16:
		return uint64(uint16(a))
	case i.imm == 32 && turn:
		return uint64(bits.ReverseBytes32(uint32(a)))
	case i.imm == 32:
		return uint64(uint32(a))
	case turn:
		return bits.ReverseBytes64(a)
	}
	return a
}

// compare evaluates the condition of a jump.
func compare(op uint8, wide bool, a, b uint64) bool {
	x, y := int64(a), int64(b)
	if !wide {
		a, b, x, y = uint64(uint32(a)), uint64(uint32(b)), int64(int32(a)), int64(int32(b))
	}
	switch op {
	case 0x10:
		return a == b
	case 0x20:
		return a > b
	case 0x30:
		return a >= b
	case 0x40:
		return a&b != 0
	case 0x50:
		return a != b
	case 0x60:
		return x > y
	case 0x70:
		return x >= y
	case 0xa0:
		return a < b
	case 0xb0:
		return a <= b
	case 0xc0:
		return x < y
	case 0xd0:
		return x <= y
	}
	fail("%w: jump %#x", errInstruction, op)
	return false
}

// atomic executes an instruction of BPF_ATOMIC.
func (v *VM) atomic(i instruction, address uint64, reg *[11]uint64) {
	size := sizeOf(i.op)
	old, operand := v.load(address, size), reg[i.src]
	n := old
	switch i.imm &^ 1 {
	case 0x00:
		n = old + operand
	case 0x40:
		n = old | operand
	case 0x50:
		n = old & operand
	case 0xa0:
		n = old ^ operand
	case 0xe0:
		n = operand
	case 0xf0:
		expected := reg[0]
		if size == 4 {
			expected = uint64(uint32(expected))
		}
		if old == expected {
			n = operand
		}
		reg[0] = old
	default:
		fail("%w: atomic %#x", errInstruction, i.imm)
	}
	v.store(address, size, n)
	if i.imm&1 != 0 && i.imm&^1 != 0xf0 { // BPF_FETCH: returns the old value
		reg[i.src] = old
	}
}
