// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/internal/dataplane/optimize"
)

// A module notes a number about a packet with kerb_note (kerb/packet.h), which calls a number that no helper has, with
// the packet context in R1 and the note in R2. A traced chain and a timed copy store the note after the packet context
// in the frame of the entry, where the call after the module reads it. In all other chains the linker removes the call
// and the code that computes its arguments, so that other packets execute nothing for it.

const (
	noteNumber   = 0x6b6574
	noteKeyShift = 48
)

// noting returns the body of a module with its calls of kerb_note replaced.
func (l *linker) noting(symbol string, code asm.Instructions) body {
	noted := slices.ContainsFunc(code, notes)
	if noted && !l.reports() {
		code = optimize.Without(code, notes)
	}
	for i := range code {
		if notes(code[i]) {
			code[i] = asm.StoreMem(asm.R1, l.note, asm.R2, asm.DWord).WithMetadata(code[i].Metadata)
		}
	}
	b := newBody(symbol, code)
	b.notes, b.inline = noted, b.inline && !l.functions
	return b
}

// notes reports whether an instruction is a call of kerb_note.
func notes(ins asm.Instruction) bool { return ins.IsBuiltinCall() && ins.Constant == noteNumber }

// noteSize returns the bytes of the frame that a body leaves for its note. The notes of modules that note nothing share
// their memory with the frames of inlined code: on Linux 6.1, which rounds frames up to 32 bytes, a traced firewall has
// no room for more.
func (l *linker) noteSize(notes bool) int32 {
	if l.reports() && notes {
		return 8
	}
	return 0
}

// forgetNote clears the note: before a module that may note something, or after one that does not.
func (l *linker) forgetNote() asm.Instruction {
	return asm.Instruction{OpCode: asm.StoreImmOp(asm.DWord), Dst: asm.RFP, Offset: l.note - int16(l.frame)}
}

// Note returns what the module noted about the packet: the number of one of its notes, 0 if there is none.
func (e TraceEvent) Note() (key uint16, value uint64) {
	return uint16(e.NoteWord >> noteKeyShift), e.NoteWord & (1<<noteKeyShift - 1)
}
