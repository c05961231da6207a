// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// A module whose package has deferredRedirect may record the target of a packet and pass it to the subsequent modules,
// which may drop it. Chains with such a module before the last one get code for it; all others stay unchanged. The last
// member redirects immediately, and so does every module on XDP, where the kernel keeps one target per packet.

// defers reports whether the modules after member i see packets that it redirects.
func (l *linker) defers(i int) bool {
	return l.spec.Side.Hook() == chain.TC && i < len(l.members)-1 && l.members[i].DeferredRedirect
}

// mayBeRedirected reports whether a packet that reaches member i may have a target already.
func (l *linker) mayBeRedirected(i int) bool {
	for n := range l.members[:i] {
		if l.defers(n) {
			return true
		}
	}
	return false
}

// loadPkt loads a 32-bit field of the packet context.
func (l *linker) loadPkt(dst asm.Register, offset int16) asm.Instruction {
	return asm.LoadMem(dst, asm.RFP, int16(-l.frame)+offset, asm.Word)
}

// keepRedirect continues with the next module after a deferred redirect, and with act after other verdicts.
func (l *linker) keepRedirect(flags int32, next, act string) asm.Instructions {
	pkt := l.pkt(asm.R1)
	pkt[0] = pkt[0].WithSymbol("keep_" + next)
	return slices.Concat(asm.Instructions{
		asm.JNE.Imm(asm.R0, int32(kerbabi.Redirect), act),
		l.loadPkt(asm.R1, l.toFlags),
		asm.JSet.Imm(asm.R1, kerbabi.ToDeferred, "keep_"+next),
		asm.Ja.Label(act),
	}, pkt, asm.Instructions{
		asm.Mov.Imm(asm.R2, flags),
		asm.Call.Label("kerb_deferred"),
		asm.Ja.Label(next),
	})
}

// redirected generates the end of a chain, or of a part of it, for packets that may have a target, and code that it
// jumps to.
func (l *linker) redirected(end asm.Instructions, parts *ebpf.Map) (branch, leave asm.Instructions) {
	if parts != nil {
		return append(l.store(), end...), nil
	}
	branch = asm.Instructions{l.loadPkt(asm.R1, l.toFlags), asm.JSet.Imm(asm.R1, kerbabi.ToDeferred, "leave")}
	leave = l.pkt(asm.R1)
	leave[0] = leave[0].WithSymbol("leave")
	leave = append(leave,
		asm.Mov.Imm(asm.R2, int32(kerbabi.Redirect)),
		asm.Mov.Imm(asm.R3, 0), // no maps of drops: a redirect is not a drop
		asm.Mov.Imm(asm.R4, 0),
		asm.Mov.Imm(asm.R5, 0),
		asm.Ja.Label(l.leaveLabel()),
	)
	return append(branch, end...), leave
}

// leaveLabel is the label of kerb_verdict, after the calls of kerb_exit, which do not apply to deferred redirects.
func (l *linker) leaveLabel() string {
	if len(l.exits) == 0 {
		return verdictLabel
	}
	return "perform"
}

// pktField returns the offset of a field of struct kerb_pkt.
func pktField(pkt *btf.Struct, name string) (int16, error) {
	i := slices.IndexFunc(pkt.Members, func(m btf.Member) bool { return m.Name == name })
	if i < 0 {
		return 0, fmt.Errorf("chain object: struct kerb_pkt has no %s", name)
	}
	return int16(pkt.Members[i].Offset.Bytes()), nil
}
