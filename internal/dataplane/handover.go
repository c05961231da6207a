// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/internal/chain"
)

// labelled is a variable that modules have which label packets (kerb/deliver.h).
const labelled = "kerb_labels"

// Offsets in struct __sk_buff, whose layout is fixed: the parts of a split chain share no stack.
const (
	skbCB0 = 48
	skbCB1 = 52
)

// handOver finds out whether a part of a chain, with a further one behind it or not, takes target and label of packets
// over from the part before, and hands them on. On XDP there is no place for a label in the context, and modules
// redirect at once.
func (l *linker) handOver(first, last int, more bool) error {
	l.takesOver, l.handsOver = l.mayBeRedirected(first), more && l.mayBeRedirected(last)
	before := first
	if more {
		before = last
	}
	for i, m := range l.members[:before] {
		if m.ID == UnavailableID {
			continue
		}
		spec, err := l.objectOf(i)
		if err != nil {
			return err
		}
		if spec == nil || spec.Variables[labelled] == nil {
			continue
		}
		if l.spec.Side.Hook() == chain.XDP {
			return &LabelsError{Module: m.Name}
		}
		l.takesOver, l.handsOver = l.takesOver || i < first, l.handsOver || more
	}
	return nil
}

// store hands target and label to the next part of a split chain.
func (l *linker) store() asm.Instructions {
	return asm.Instructions{
		l.loadContext(),
		l.loadPkt(asm.R2, l.toIfindex),
		asm.StoreMem(asm.R1, skbCB0, asm.R2, asm.Word),
		l.loadPkt(asm.R2, l.toFlags),
		asm.StoreMem(asm.R1, skbCB1, asm.R2, asm.Word),
	}
}

// restore takes target and label over from the part before.
func (l *linker) restore() asm.Instructions {
	return asm.Instructions{
		l.loadContext(),
		asm.LoadMem(asm.R2, asm.R1, skbCB0, asm.Word),
		asm.StoreMem(asm.RFP, int16(-l.frame)+l.toIfindex, asm.R2, asm.Word),
		asm.LoadMem(asm.R2, asm.R1, skbCB1, asm.Word),
		asm.StoreMem(asm.RFP, int16(-l.frame)+l.toFlags, asm.R2, asm.Word),
	}
}
