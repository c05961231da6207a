// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/internal/chain"
)

// labelled is a variable of modules that label packets (kerb/deliver.h).
const labelled = "kerb_labels"

// Offsets in struct __sk_buff, whose layout is fixed: the parts of a split chain share no stack.
const (
	skbCB0 = 48
	skbCB1 = 52
)

// handOver determines whether a part of a split chain takes over target and label of packets from the part before, and
// whether it passes them on to the next. On XDP the context has no room for a label, and modules redirect immediately.
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

// store passes target and label to the next part of a split chain.
func (l *linker) store() asm.Instructions {
	return asm.Instructions{
		l.loadContext(),
		l.loadPkt(asm.R2, l.toIfindex),
		asm.StoreMem(asm.R1, skbCB0, asm.R2, asm.Word),
		l.loadPkt(asm.R2, l.toFlags),
		asm.StoreMem(asm.R1, skbCB1, asm.R2, asm.Word),
	}
}

// restore takes over target and label from the part before.
func (l *linker) restore() asm.Instructions {
	return asm.Instructions{
		l.loadContext(),
		asm.LoadMem(asm.R2, asm.R1, skbCB0, asm.Word),
		asm.StoreMem(asm.RFP, int16(-l.frame)+l.toIfindex, asm.R2, asm.Word),
		asm.LoadMem(asm.R2, asm.R1, skbCB1, asm.Word),
		asm.StoreMem(asm.RFP, int16(-l.frame)+l.toFlags, asm.R2, asm.Word),
	}
}
