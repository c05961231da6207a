// SPDX-License-Identifier: Apache-2.0

package executable

import (
	"debug/elf"
	"encoding/binary"
)

// Flags of recv(2).
const (
	msgOOB     = 0x1
	msgWaitAll = 0x100
	msgAll     = 0x7fff_ffff &^ 0x7f00_0000 // larger numbers are no flags, but something else that was in the register
)

// flagsArgument is where calls that receive have their flags, counted from 0.
var flagsArgument = map[string]int{"recv": 3, "recvfrom": 3, "recvmsg": 2, "__recv_chk": 4, "__recvfrom_chk": 4}

// receivers are the ways to calls that receive, with the argument that has their flags.
type receivers struct {
	slots map[uint64]int // of the global offset table, by address
	stubs map[uint64]int // of the procedure linkage table, by address
}

// maxWays is more than any program has that was not crafted to exceed it; such a program harms only itself.
const maxWays = 1 << 16

func note(ways map[uint64]int, at uint64, argument int) {
	if len(ways) < maxWays {
		ways[at] = argument
	}
}

// receiversOf finds them by the relocations of the dynamic linker.
func receiversOf(o *object, s symbols, c code) (*receivers, error) {
	r := &receivers{slots: map[uint64]int{}, stubs: map[uint64]int{}}
	for _, section := range o.sections {
		if section.Type != uint32(elf.SHT_RELA) || len(s.table) == 0 {
			continue
		}
		data, err := o.table(section)
		if err != nil {
			return nil, err
		}
		for ; len(data) >= 24; data = data[24:] { // Elf64_Rela: offset, info with the symbol in its upper half, addend
			name, _ := s.imported(binary.LittleEndian.Uint64(data[8:]) >> 32)
			if argument, ok := flagsArgument[name]; ok {
				note(r.slots, binary.LittleEndian.Uint64(data), argument)
			}
		}
	}
	return r, r.findStubs(o, c)
}

func (r *receivers) findStubs(o *object, c code) error {
	if len(r.slots) == 0 {
		return nil
	}
	for _, section := range o.named(".plt") {
		if section.Type != uint32(elf.SHT_PROGBITS) {
			continue
		}
		data, err := o.table(section)
		if err != nil {
			return err
		}
		c.stubs(r, data, section.Addr)
	}
	return nil
}

// markFlags notes what flags say. Only constants are seen: a program that works them out is not understood.
func markFlags(uses map[string]bool, flags uint32) {
	if flags&^msgAll != 0 {
		return
	}
	if flags&msgWaitAll != 0 {
		uses[WaitAll] = true
	}
	if flags&msgOOB != 0 {
		uses[Urgent] = true
	}
}

// callWindow is how many bytes before a call its flags may be set.
const callWindow = 64

// x86Arguments are the registers of arguments by number, as in MOV and XOR: rdi, rsi, rdx, rcx, r8, r9.
var x86Arguments = [...]byte{7, 6, 2, 1, 8, 9}

// stubs: [ENDBR64] [BND] JMP [rip+rel32].
func (x86) stubs(r *receivers, plt []byte, address uint64) {
	for i := 0; i+6 <= len(plt); i++ {
		if plt[i] != 0xff || plt[i+1] != 0x25 {
			continue
		}
		argument, ok := r.slots[relative(plt, i+2, address)]
		if !ok {
			continue
		}
		for _, before := range []int{0, 1, 4, 5} {
			note(r.stubs, address+uint64(i-before), argument)
		}
	}
}

// calls: CALL or JMP rel32 to a stub, CALL or JMP [rip+rel32] by a slot.
func (c x86) receives(uses map[string]bool, r *receivers, text []byte, address uint64) {
	if len(r.slots) == 0 {
		return
	}
	for i := 0; i+6 <= len(text); i++ {
		argument, ok := 0, false
		switch text[i] {
		case 0xe8, 0xe9:
			argument, ok = r.stubs[relative(text, i+1, address)]
		case 0xff:
			if text[i+1] == 0x15 || text[i+1] == 0x25 {
				argument, ok = r.slots[relative(text, i+2, address)]
			}
		}
		if ok {
			markFlags(uses, c.lastSet(text[max(0, i-callWindow):i], x86Arguments[argument]))
		}
	}
}

// relative is where a rel32 at an offset points to.
func relative(text []byte, at int, address uint64) uint64 {
	return address + uint64(at) + 4 + uint64(int64(int32(binary.LittleEndian.Uint32(text[at:]))))
}

// lastSet is the last constant that a register is given, 0 if it is given something else behind that.
func (x86) lastSet(window []byte, register byte) (constant uint32) {
	for i := 0; i+2 <= len(window); i++ {
		at := window[i:]
		extended := i > 0 && window[i-1]&0xf9 == 0x41 // REX.B: r8 and above
		if extended != (register >= 8) {
			continue
		}
		low := register & 7
		switch {
		case at[0] == 0xb8+low && len(at) >= 5: // MOV r32, imm32
			constant = binary.LittleEndian.Uint32(at[1:])
		case at[0] == 0x31 && at[1] == 0xc0+9*low, at[0] == 0x89 && at[1]&0xc7 == 0xc0+low: // XOR r, r; MOV r, other
			constant = 0
		}
	}
	return constant
}

// stubs: ADRP x16, page; LDR x17, [x16, offset]; ADD; BR x17.
func (arm64) stubs(r *receivers, plt []byte, address uint64) {
	for i := 0; i+8 <= len(plt); i += 4 {
		adrp, ldr := binary.LittleEndian.Uint32(plt[i:]), binary.LittleEndian.Uint32(plt[i+4:])
		if adrp&0x9f00001f != 0x90000010 || ldr&0xffc003ff != 0xf9400211 {
			continue
		}
		pages := int64(int32(adrp<<8)>>11&^3|int32(adrp>>29&3)) << 12
		slot := (address+uint64(i))&^0xfff + uint64(pages) + uint64(ldr>>10&0xfff)*8
		if argument, ok := r.slots[slot]; ok {
			note(r.stubs, address+uint64(i), argument)
			note(r.stubs, address+uint64(i)-4, argument) // BTI
		}
	}
}

// receives: BL or B to a stub.
func (arm64) receives(uses map[string]bool, r *receivers, text []byte, address uint64) {
	if len(r.stubs) == 0 {
		return
	}
	for i := 0; i+4 <= len(text); i += 4 {
		op := binary.LittleEndian.Uint32(text[i:])
		if op&0x7c000000 != 0x14000000 {
			continue
		}
		argument, ok := r.stubs[address+uint64(i)+uint64(int64(int32(op<<6)>>4))]
		if !ok {
			continue
		}
		var flags uint32
		for from := max(0, i-callWindow); from < i; from += 4 {
			before := binary.LittleEndian.Uint32(text[from:])
			if int(before&31) != argument {
				continue
			}
			if n, moves := moved(before); moves {
				flags = n
			} else if before&0x7fe0ffe0 == 0x2a0003e0 { // MOV Wd, Wm
				flags = 0
			}
		}
		markFlags(uses, flags)
	}
}
