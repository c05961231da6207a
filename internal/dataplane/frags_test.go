// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/chain"
)

// A frame in several buffers is as long as all of them, whether the program reads in struct xdp_buff that it is one or
// asks a helper for the length.
func TestLengthOfFrames(t *testing.T) {
	needsRoot(t)
	if !haveXDPFrags() {
		t.Skip("XDP programs see frames in one buffer only before Linux 5.18")
	}
	read := xdpFlags
	t.Cleanup(func() { xdpFlags = read })
	for name, access := range map[string]func() xdpAccess{"as this kernel can": read,
		"by the helper": func() xdpAccess { return xdpAccess{} }} {
		xdpFlags = access
		for _, size := range []int{18, 3000, 9000} {
			m := testModule(t, "pass", "all", nil)
			m.Frags = true
			l := load(t, chain.OnXDP, chain.Egress, m)
			frame := udpPacket(t, 53, make([]byte, size))
			run(t, l.Program, frame)
			if _, bytes := counted(t, l.Maps["all"]["totals"]); bytes != uint64(len(frame)) {
				t.Errorf("%s: the module sees %d bytes of %d", name, bytes, len(frame))
			}
			one, none := Count{1, uint64(len(frame))}, Count{}
			wantCounts(t, l, counts(one, none, none, none))
		}
	}
}

// Where this kernel lets programs read struct xdp_buff, no packet calls the helper.
func TestLinearFramesCallNoHelper(t *testing.T) {
	needsRoot(t)
	if xdpFlags().frags == 0 || !haveXDPFrags() {
		t.Skip("programs cannot read struct xdp_buff before Linux 6.2")
	}
	m := testModule(t, "pass", "all", nil)
	m.Frags = true
	l := load(t, chain.OnXDP, chain.Egress, m)
	_, code, err := l.RelinkWithCode(l.chain.spec)
	if err != nil {
		t.Fatal(err)
	}
	is := func(ins asm.Instruction) bool {
		return ins.IsBuiltinCall() && asm.BuiltinFunc(ins.Constant) == asm.FnXdpGetBuffLen
	}
	i := slices.IndexFunc(code, is)
	if i < 3 || !slices.ContainsFunc(code[i-3:i], func(ins asm.Instruction) bool { return ins.OpCode.Class().IsJump() }) {
		t.Errorf("the helper is called for every packet: %v", code[:max(i, 0)+1])
	}
}

func TestXDPLayout(t *testing.T) {
	u32 := &btf.Int{Size: 4}
	buff := func(members ...btf.Member) *btf.Struct {
		data := btf.Member{Name: "data", Type: &btf.Pointer{Target: &btf.Void{}}}
		return &btf.Struct{Size: 56, Members: append([]btf.Member{data}, members...)}
	}
	flags := &btf.Enum{Size: 4, Values: []btf.EnumValue{{Name: "XDP_FLAGS_FRAGS_PF_MEMALLOC", Value: 2},
		{Name: "XDP_FLAGS_HAS_FRAGS", Value: 1}}}
	both := &btf.Struct{Size: 8, Members: []btf.Member{{Name: "frame_sz", Type: u32},
		{Name: "flags", Type: u32, Offset: 32}}}
	for _, c := range []struct {
		name  string
		buff  *btf.Struct
		flags *btf.Enum
		want  xdpAccess
	}{
		{"plain", buff(btf.Member{Name: "flags", Type: u32, Offset: 52 * 8}), flags, xdpAccess{52, 1}},
		{"in an anonymous union", buff(btf.Member{Type: &btf.Union{Size: 8, Members: []btf.Member{{Type: both}}},
			Offset: 48 * 8}), flags, xdpAccess{52, 1}},
		{"none", buff(), flags, xdpAccess{}},
		{"wider", buff(btf.Member{Name: "flags", Type: &btf.Int{Size: 8}, Offset: 48 * 8}), flags, xdpAccess{}},
		{"bits", buff(btf.Member{Name: "flags", Type: u32, Offset: 48 * 8, BitfieldSize: 3}), flags, xdpAccess{}},
		{"another flag", buff(btf.Member{Name: "flags", Type: u32, Offset: 52 * 8}), &btf.Enum{Size: 4}, xdpAccess{}},
	} {
		if got := xdpLayout(c.buff, c.flags); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
