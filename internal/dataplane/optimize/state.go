// SPDX-License-Identifier: Apache-2.0

package optimize

import (
	"encoding/binary"
	"math/bits"

	"github.com/cilium/ebpf/asm"
)

// frameSize is that of a function's stack.
const frameSize = 512

// kind is what is known of a register.
type kind uint8

const (
	unknown  kind = iota // may point into the frame
	other                // does not
	constant             // has the value n
	frame                // points to the frame pointer + n
)

type value struct {
	kind kind
	n    int64
}

// pointing reports whether a register may point into the frame.
func (v value) pointing() bool { return v.kind == unknown || v.kind == frame }

// bytes is a set of the frame's.
type bytes [frameSize / 64]uint64

func (b *bytes) has(i int) bool { return b[i/64]>>(i%64)&1 == 1 }
func (b *bytes) add(i int)      { b[i/64] |= 1 << (i % 64) }
func (b *bytes) drop(i int)     { b[i/64] &^= 1 << (i % 64) }

func (b *bytes) fill() {
	for i := range b {
		b[i] = ^uint64(0)
	}
}

// span is a part of the frame. Without a size it is none.
type span struct{ at, size int16 }

func (s span) meets(at, size int) bool {
	return int(s.at) < at+size && at < int(s.at+s.size)
}

// state is what is known at an instruction.
type state struct {
	reached  bool
	regs     [asm.R10 + 1]value
	copies   [asm.R10]span // what registers have a copy of; of 4 bytes the low half of the register
	known    bytes         // have the values in memory
	pointing bytes         // may be of a pointer into the frame
	memory   [frameSize]byte
}

func begin() state {
	s := state{reached: true}
	for i := range s.regs {
		s.regs[i].kind = other
	}
	s.regs[asm.RFP] = value{frame, 0}
	return s
}

// merge keeps what two states have in common, and reports whether s changes.
func (s *state) merge(o *state) (changed bool) {
	if !s.reached {
		*s = *o
		return true
	}
	for i := range s.regs {
		if m := common(s.regs[i], o.regs[i]); m != s.regs[i] {
			s.regs[i], changed = m, true
		}
	}
	for i, c := range s.copies {
		if c != o.copies[i] && c.size > 0 {
			s.copies[i], changed = span{}, true
		}
	}
	for w := range s.known {
		known := s.known[w] & o.known[w]
		for both := known; both != 0; both &= both - 1 {
			if i := bits.TrailingZeros64(both); s.memory[w*64+i] != o.memory[w*64+i] {
				known &^= 1 << i
			}
		}
		pointing := s.pointing[w] | o.pointing[w]
		changed = changed || known != s.known[w] || pointing != s.pointing[w]
		s.known[w], s.pointing[w] = known, pointing
	}
	return changed
}

func common(a, b value) value {
	switch {
	case a == b:
		return a
	case a.pointing() || b.pointing():
		return value{}
	}
	return value{kind: other}
}

// slot is where in the frame an access of a register lies.
func (s *state) slot(base asm.Register, offset int16, size int) (at int, ok bool) {
	v := s.regs[base]
	at = frameSize + int(v.n) + int(offset)
	return at, v.kind == frame && v.n >= -frameSize && v.n <= 0 && at >= 0 && at+size <= frameSize
}

// forget is a write to an address that may be in the frame.
func (s *state) forget() {
	s.known = bytes{}
	s.pointing.fill()
	clear(s.copies[:])
}

// set gives a register a value.
func (s *state) set(r asm.Register, v value, copied span) { s.regs[r], s.copies[r] = v, copied }

// copyOf finds a register with a copy, rather one that calls do not change.
func (s *state) copyOf(c span) (r asm.Register, found bool) {
	for r := asm.R9; ; r-- {
		if s.copies[r] == c {
			return r, true
		}
		if r == asm.R0 {
			return 0, false
		}
	}
}

// write stores a value.
func (s *state) write(at, size int, v value) {
	for r, c := range s.copies {
		if c.meets(at, size) {
			s.copies[r] = span{}
		}
	}
	var b [8]byte
	put(b[:size], uint64(v.n))
	for i := range size {
		s.memory[at+i] = b[i]
		s.known.drop(at + i)
		s.pointing.drop(at + i)
		if v.kind == constant {
			s.known.add(at + i)
		} else if v.pointing() {
			s.pointing.add(at + i)
		}
	}
}

// read loads a value.
func (s *state) read(at, size int) value {
	known, pointing := true, size == 8
	for i := range size {
		known = known && s.known.has(at+i)
		pointing = pointing && s.pointing.has(at+i)
	}
	switch {
	case known:
		return value{constant, int64(get(s.memory[at : at+size]))}
	case pointing:
		return value{}
	}
	return value{kind: other}
}

// holds reports whether the frame has a value already.
func (s *state) holds(at, size int, v value) bool {
	now := s.read(at, size)
	return v.kind == constant && now.kind == constant && now.n == cut(v.n, size)
}

func cut(n int64, size int) int64 {
	if size == 8 {
		return n
	}
	return n & (1<<(8*size) - 1)
}

func put(b []byte, n uint64) {
	var whole [8]byte
	binary.LittleEndian.PutUint64(whole[:], n) // the byte order of all machines that Kerb runs on
	copy(b, whole[:])
}

func get(b []byte) uint64 {
	var whole [8]byte
	copy(whole[:], b)
	return binary.LittleEndian.Uint64(whole[:])
}
