// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane/optimize"
	"github.com/kerb-edge/kerb/sdk"
)

// A module that defines KERB_EXIT is notified of packets for which other modules return another verdict than NEXT.
// Chains with such a module call it before kerb_verdict; all other chains stay unchanged, and a packet that passes
// executes no additional instruction. The number of the module that returned the verdict is in the upper half of the
// register with the flags.

const exitEntry = "kerb_exit"

func (l *linker) exitSymbol(i int) string { return l.symbol(i) + "_exit" }

// exitFunctions returns the functions of all members, including those in other parts of a split chain, and records in
// exits which members have one.
func (l *linker) exitFunctions() (out asm.Instructions, err error) {
	l.exits = nil
	for i, g := range l.members {
		spec, err := l.objectOf(i)
		if err != nil {
			return nil, err
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

// exit calls the exit functions, except that of the module that returned the verdict. The arguments of kerb_verdict are
// saved in callee-saved registers, which is possible because the program ends afterwards.
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
	for n, i := range l.exits {
		place, skip := int32(1+i), fmt.Sprintf("exited%d", n)
		call := slices.Concat(asm.Instructions{
			asm.Mov.Reg32(asm.R4, asm.R8), // flags, with the position of the module that returned the verdict
			asm.RSh.Imm(asm.R4, callCountShift),
			asm.JEq.Imm(asm.R4, place, skip),
			asm.Sub.Imm(asm.R4, place), // negative: it is before this one
			asm.RSh.Imm(asm.R4, 63),
			asm.Xor.Imm(asm.R4, 1),
			asm.Mov.Reg(asm.R3, asm.R8),
			asm.RSh.Imm(asm.R3, 32),
			asm.Mov.Reg(asm.R2, asm.R6),
			asm.Mov.Imm(asm.R5, side),
		}, l.pkt(asm.R1), asm.Instructions{asm.Call.Label(l.exitSymbol(i))})
		if n > 0 {
			call[0] = call[0].WithSymbol(fmt.Sprintf("exited%d", n-1))
		}
		code = append(code, call...)
	}
	end := l.pkt(asm.R1)
	end[0] = end[0].WithSymbol(fmt.Sprintf("exited%d", len(l.exits)-1))
	code = append(code, end...)
	for n := range kept {
		move := asm.Mov.Reg(arguments[n], kept[n])
		if arguments[n] == asm.R4 {
			move = asm.Mov.Reg32(arguments[n], kept[n])
		}
		code = append(code, move)
	}
	return code
}

// loadFlags loads callFlags of module i, with the module's number for exit.
func (l *linker) loadFlags(i int) asm.Instruction {
	flags := l.callFlags(i)
	if len(l.exits) == 0 || l.uncounted {
		return asm.Mov.Imm(asm.R4, flags)
	}
	number := sdk.ModuleNumber(l.members[i].Name)
	return asm.LoadImm(asm.R4, int64(number)<<32|int64(flags), asm.DWord)
}
