// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane/optimize"
)

// A module that defines KERB_EXIT learns of the packets that the others do not leave to the next. Chains with such a
// module call it before kerb_verdict; all others do not change, and a packet that passes executes nothing for it.

const exitEntry = "kerb_exit"

func (l *linker) exitSymbol(i int) string { return l.symbol(i) + "_exit" }

// exitFunctions returns the functions of all members, also of those in other parts of a split chain, and keeps in exits
// which members have one.
func (l *linker) exitFunctions() (out asm.Instructions, err error) {
	l.exits = nil
	for i, g := range l.members {
		if g.ID == UnavailableID || g.Spec == nil {
			continue
		}
		spec, err := g.Spec(l.spec.Side.Hook())
		if err != nil {
			return nil, fmt.Errorf("module %s: %w", g.Name, err)
		}
		if spec == nil || spec.Programs[exitEntry] == nil {
			continue
		}
		code, err := l.function(spec, exitEntry, l.exitSymbol(i), g)
		if err != nil {
			return nil, fmt.Errorf("module %s: %w", g.Name, err)
		}
		l.exits, out = append(l.exits, i), append(out, optimize.Without(code, notes)...) // no trace is written there
	}
	return out, nil
}

// exit calls them. The arguments of kerb_verdict are kept in the registers that calls do not change: the program ends
// behind it.
func (l *linker) exit() (code asm.Instructions) {
	if len(l.exits) == 0 {
		return nil
	}
	kept := []asm.Register{asm.R6, asm.R7, asm.R8, asm.R9}
	arguments := []asm.Register{asm.R2, asm.R3, asm.R4, asm.R5}
	for n := range kept {
		code = append(code, asm.Mov.Reg(kept[n], arguments[n]))
	}
	side := int32(0)
	if l.spec.Direction == chain.Ingress {
		side = 1
	}
	for _, i := range l.exits {
		code = slices.Concat(code, l.pkt(asm.R1), asm.Instructions{
			asm.Mov.Reg(asm.R2, asm.R6),
			asm.Mov.Reg(asm.R3, asm.R8), // callFlags: the module's place
			asm.RSh.Imm(asm.R3, callCountShift),
			asm.Mov.Imm(asm.R4, int32(1+i)),
			asm.Mov.Imm(asm.R5, side),
			asm.Call.Label(l.exitSymbol(i)),
		})
	}
	code = append(code, l.pkt(asm.R1)...)
	for n := range kept {
		code = append(code, asm.Mov.Reg(arguments[n], kept[n]))
	}
	return code
}
