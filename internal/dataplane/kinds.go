// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/internal/dataplane/optimize"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// Each small module checks again what kind of packet it has. A chain of such modules contains copies of them for the
// kinds of nearly all packets, in which the results of these checks are constants. The code for verdicts other than
// NEXT exists once: what continues with another module continues with the general one.

// kinds are the four bytes of struct kerb_pkt from family on: family, proto, flags, outcome.
var kinds = [][4]byte{
	{4, 6, kerbabi.FlagL4}, {4, 17, kerbabi.FlagL4}, {6, 6, kerbabi.FlagL4}, {6, 17, kerbabi.FlagL4},
}

const (
	kindMost   = 512 // instructions of the modules, including their functions
	kindChecks = 3   // minimum checks of the modules: fewer save less than it takes to find the kind
)

// hasKinds reports whether a chain has copies of its modules. Chains that trace or measure have each module once.
func (l *linker) hasKinds(modules []body) bool {
	size, checks := 0, 0
	for _, m := range modules {
		if !m.inline {
			return false
		}
		size += len(m.own) + len(m.others)
		checks += l.kindChecks(m.own)
	}
	return l.traced == 0 && !l.timed && size <= kindMost && checks >= kindChecks
}

// kindChecks counts the branches of a module that depend on the kind.
func (l *linker) kindChecks(code asm.Instructions) (n int) {
	for i, ins := range code {
		if ins.OpCode.Class() != asm.LdXClass || ins.Src == asm.RFP || ins.Offset < l.kind || ins.Offset > l.kind+3 {
			continue
		}
		for _, next := range code[i+1 : min(i+3, len(code))] {
			if next.OpCode.Class().IsJump() && next.Dst == ins.Dst {
				n++
				break
			}
		}
	}
	return n
}

// dispatch jumps to the copies for the kind of the packet, if there are any.
func (l *linker) dispatch() asm.Instructions {
	l.facts = map[string][]optimize.Fact{}
	code := asm.Instructions{l.loadPkt(asm.R1, l.kind)}
	for k, kind := range kinds {
		label := kindLabel(k, 0)
		code = append(code, asm.JEq.Imm(asm.R1, int32(binary.NativeEndian.Uint32(kind[:])), label))
		for i, b := range kind {
			l.facts[label] = append(l.facts[label], optimize.Fact{Offset: int(l.kind-int16(l.frame)) + i, Value: b})
		}
	}
	return code
}

func kindLabel(kind, module int) string { return fmt.Sprintf("kind%d_%d", kind, module) }

// copies generates the modules for each kind.
func (l *linker) copies(first int, modules []body, end string) (code asm.Instructions) {
	size := 0
	for _, m := range modules {
		size += len(m.own) + 3
	}
	code = make(asm.Instructions, 0, len(kinds)*(size+1))
	for k := range kinds {
		for n, m := range modules {
			start := l.pkt(asm.R1)
			start[0] = start[0].WithSymbol(kindLabel(k, n))
			said := "said_" + kindLabel(k, n)
			code = append(append(code, start...), call(m, said)...)
			code = append(code, asm.JNE.Imm(asm.R0, 0, verdictOf(first+n)).WithSymbol(said))
		}
		code = append(code, asm.Ja.Label(end))
	}
	return code
}
