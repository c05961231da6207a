// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// entry generates the entry of a chain, from which everything else is called:
//
//	kerb_count(ctx, &pkt)
//	kerb_head(ctx, &pkt)
//	for each module: if (module(&pkt)) -> cold code: return kerb_verdict(...), or continue
//	return the hook's "next", or tail call into the next part
//
// Calls of small functions are replaced by their code. The context is at the bottom of the frame. Code for verdicts
// other than NEXT comes last, so that a packet that passes runs straight through. kerb_verdict is there once.
func (l *linker) entry(first int, start, head body, modules []body, verdict body, parts *ebpf.Map,
	slot int) asm.Instructions {
	l.setFrame(append([]body{start, head, verdict}, modules...))
	code := l.pkt(asm.R2)
	code[0] = btf.WithFuncMetadata(code[0].WithSymbol("kerb_chain"), l.entryType())
	code = append(code, call(start, "started")...)
	code = append(append(code, l.parse(first)...), call(head, "next-")...)
	next := "next-"
	if l.timed {
		stamp := l.stampHead(first)
		stamp[0] = stamp[0].WithSymbol(next)
		code, next = append(code, stamp...), "stamped"
	}
	if l.takesOver { // from another part
		restore := l.restore()
		restore[0] = restore[0].WithSymbol(next)
		code, next = append(code, restore...), "restored"
	}
	l.facts = nil
	if l.hasKinds(modules) {
		dispatch := l.dispatch()
		dispatch[0] = dispatch[0].WithSymbol(next)
		code, next = append(code, dispatch...), "general"
	}
	each, cold := l.each(first, modules, next)
	code, cold = append(code, each...), append(l.sample(first), cold...)
	if len(modules) > 0 {
		next = nextOf(first + len(modules) - 1)
	}
	end, leave := l.end(parts, slot), asm.Instructions(nil)
	if l.mayBeRedirected(first + len(modules)) {
		end, leave = l.redirected(end, parts)
	} else if l.handsOver {
		end = append(l.store(), end...)
	}
	end[0] = end[0].WithSymbol(next)
	if l.facts != nil {
		code = append(append(code, asm.Ja.Label(next)), l.copies(first, modules, next)...)
	}
	if len(modules) == 0 {
		return slices.Concat(code, end, cold, leave)
	}
	act := call(verdict, "out")
	if len(leave) > 0 && len(l.exits) > 0 {
		act[0] = act[0].WithSymbol(l.leaveLabel())
	}
	act = append(l.exit(), act...)
	act[0] = act[0].WithSymbol(verdictLabel)
	if !verdict.inline {
		act = append(act, asm.Ja.Label("out"))
	}
	return slices.Concat(code, end, cold, leave, act)
}

// each calls the modules in order, starting at a label for the first one.
func (l *linker) each(first int, modules []body, label string) (code, cold asm.Instructions) {
	for n, m := range modules {
		i := first + n
		start := l.pkt(asm.R1)
		if l.reports() && m.notes {
			start = append(start, l.forgetNote())
		}
		if l.traced != 0 && i == 0 {
			start = append(l.traceHead(), start...)
		}
		start[0] = start[0].WithSymbol(label)
		label = nextOf(i)
		said := fmt.Sprintf("check%d", i)
		check := append(l.report(i), asm.JNE.Imm(asm.R0, 0, verdictOf(i)))
		if l.reports() && !m.notes {
			check = append(asm.Instructions{l.forgetNote()}, check...)
		}
		check[0] = check[0].WithSymbol(said)
		code = append(append(append(code, start...), call(m, said)...), check...)
		cold = append(cold, l.cold(i, verdictOf(i), label)...)
	}
	return code, cold
}

// nextOf returns the label where a packet continues for which module i returned NEXT.
func nextOf(i int) string { return fmt.Sprintf("next%d", i) }

// parse generates the call of the head, unless the packet runs in the timed copy.
func (l *linker) parse(first int) asm.Instructions {
	code := append(asm.Instructions{l.loadContext()}, l.pkt(asm.R2)...)
	label := "started"
	if l.sampled(first) {
		code = append(asm.Instructions{asm.JSGE.Imm(asm.R0, 0, "sample").WithSymbol(label)}, code...)
		code[1], label = code[1].WithSymbol("parse"), ""
	}
	if label != "" {
		code[0] = code[0].WithSymbol(label)
	}
	return code
}

// loadContext loads the hook's context.
func (l *linker) loadContext() asm.Instruction {
	return asm.LoadMem(asm.R1, asm.RFP, int16(-l.frame), asm.DWord) // pkt.ctx
}

// call generates a call of a function and continues at a label.
func call(b body, end string) asm.Instructions {
	if b.inline {
		return b.inlined(end)
	}
	return asm.Instructions{asm.Call.Label(b.symbol)}
}

// setFrame places the packet context below the frames of everything that is inlined into the entry.
func (l *linker) setFrame(bodies []body) {
	l.frame = l.pktSize + l.noteSize(true)
	for _, b := range bodies {
		if b.inline {
			l.frame = max(l.frame, l.pktSize+b.stack+l.noteSize(b.notes))
		}
	}
}

// pkt loads the address of the context into a register.
func (l *linker) pkt(dst asm.Register) asm.Instructions {
	return asm.Instructions{asm.Mov.Reg(dst, asm.RFP), asm.Add.Imm(dst, -l.frame)}
}

// end generates the code after the last module.
func (l *linker) end(parts *ebpf.Map, slot int) asm.Instructions {
	var out asm.Instructions
	if l.timed {
		out = keepR0(asm.Instructions{asm.Call.Label("kerb_slow_end")})
	}
	out = append(out, asm.Return())
	out[0] = out[0].WithSymbol("out")
	if parts == nil {
		return append(asm.Instructions{asm.Mov.Imm(asm.R0, l.action(xdpPass, tcNext))}, out...)
	}
	return append(append(l.tailCall(parts, slot),
		asm.Mov.Imm(asm.R0, l.missingPart()), // only if the table was emptied from outside
	), out...)
}

// tailCall generates a tail call to another program, if the table has it.
func (l *linker) tailCall(table *ebpf.Map, slot int) asm.Instructions {
	return asm.Instructions{
		l.loadContext(),
		asm.LoadMapPtr(asm.R2, table.FD()),
		asm.Mov.Imm(asm.R3, int32(slot)),
		asm.FnTailCall.Call(),
	}
}

// verdictLabel is the label of kerb_verdict in the entry. It ends the program.
const verdictLabel = "verdict"

// verdictOf returns the label for verdicts of module i other than NEXT.
func verdictOf(i int) string { return fmt.Sprintf("verdict%d", i) }

// cold generates the call of kerb_verdict for a verdict of module i.
func (l *linker) cold(i int, symbol, next string) asm.Instructions {
	open := failsOpen(l.spec.Members[i])
	drops, byIfindex := l.members[i].maps[dropsMap].FD(), l.members[i].maps[ifindexDropsMap].FD()
	code := append(l.pkt(asm.R1),
		asm.Mov.Reg(asm.R2, asm.R0),
		asm.LoadMapValue(asm.R3, drops, 0),
		l.loadFlags(i),
		asm.LoadMapPtr(asm.R5, byIfindex),
		asm.Ja.Label(verdictLabel),
	)
	if open {
		bad := fmt.Sprintf("bad%d", i)
		code = append(asm.Instructions{asm.JGT.Imm(asm.R0, int32(kerbabi.VerdictCount-1), bad)}, code...)
		code = append(append(code, asm.LoadMapValue(asm.R2, drops, 0).WithSymbol(bad), asm.LoadMapPtr(asm.R3, byIfindex),
			asm.Mov.Imm(asm.R4, l.callFlags(i))), l.pkt(asm.R1)...)
		code = append(code, asm.Call.Label("kerb_bad_verdict"), asm.Ja.Label(next))
	}
	if l.defers(i) {
		act := fmt.Sprintf("act%d", i)
		code[0] = code[0].WithSymbol(act)
		code = append(l.keepRedirect(l.callFlags(i), next, act), code...)
	}
	code[0] = code[0].WithSymbol(symbol)
	return code
}
