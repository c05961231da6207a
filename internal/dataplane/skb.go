// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
)

// skbWindow is the number of bytes of struct sk_buff that a module reads at once: FW_SKB_WINDOW in
// modules/firewall/offload.h.
const skbWindow = 80

// skbAccess describes how the running kernel lets data planes read struct sk_buff.
type skbAccess struct {
	// constants are the offsets of fields that struct __sk_buff does not have, by the constants of data planes that read
	// them. A module that declares them gets their values; it must do without the fields if they are zero.
	constants map[string]any
	cast      btf.TypeID // bpf_cast_to_kern_ctx (Linux 6.2); 0 if it cannot be called
}

var skbFields = sync.OnceValues(func() (a skbAccess, err error) {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return a, fmt.Errorf("type information of the kernel: %w", err)
	}
	var skb *btf.Struct
	if err := types.TypeByName("sk_buff", &skb); err != nil {
		return a, err
	}
	if a.constants, err = skbLayout(skb); err != nil {
		return a, err
	}
	var fn *btf.Func
	if types.TypeByName("bpf_cast_to_kern_ctx", &fn) == nil {
		if id, err := types.TypeID(fn); err == nil && canCast(ebpf.SchedCLS, id,
			a.constants["kerb_skb_window"].(uint32)+a.constants["kerb_skb_ip_summed"].(uint32)) {
			a.cast, a.constants["kerb_skb_cast"] = id, true
			return a, nil
		}
	}
	if err := features.HaveProgramHelper(ebpf.SchedCLS, asm.FnProbeReadKernel); err != nil {
		return a, fmt.Errorf("TC programs cannot read kernel memory: %w", err)
	}
	return a, nil
})

// canCast tries to load a program that reads a byte of the kernel's packet structure.
func canCast(kind ebpf.ProgramType, id btf.TypeID, offset uint32) bool {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			castCall(id), asm.LoadMem(asm.R0, asm.R0, int16(offset), asm.Byte), asm.Return()}})
	if err != nil {
		return false
	}
	prog.Close()
	return true
}

// xdpAccess is the location of the flags in struct xdp_buff, and the flag for frames in several buffers: zeros if
// programs cannot read it.
type xdpAccess struct{ offset, frags uint32 }

var xdpFlags = sync.OnceValue(func() xdpAccess {
	a, err := skbFields() // the same function is used
	if err != nil || a.cast == 0 {
		return xdpAccess{}
	}
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return xdpAccess{}
	}
	var buff *btf.Struct
	var flags *btf.Enum
	if types.TypeByName("xdp_buff", &buff) != nil || types.TypeByName("xdp_buff_flags", &flags) != nil {
		return xdpAccess{}
	}
	xdp := xdpLayout(buff, flags)
	if xdp.offset == 0 || !canCast(ebpf.XDP, a.cast, xdp.offset) {
		return xdpAccess{}
	}
	return xdp
})

// xdpLayout returns zeros if this kernel's layout differs from what programs expect.
func xdpLayout(buff *btf.Struct, flags *btf.Enum) (xdp xdpAccess) {
	m, offset, found := findMember(buff.Members, "flags", 0)
	if size, err := btf.Sizeof(m.Type); !found || err != nil || size != 4 || m.BitfieldSize != 0 {
		return xdpAccess{}
	}
	for _, value := range flags.Values {
		if value.Name == "XDP_FLAGS_HAS_FRAGS" {
			return xdpAccess{uint32(offset / 8), uint32(value.Value)}
		}
	}
	return xdpAccess{}
}

func castCall(id btf.TypeID) asm.Instruction {
	return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall,
		Constant: int64(id)}
}

// HaveSKBFields returns why data planes cannot read the checksum fields of struct sk_buff, nil if they can.
func HaveSKBFields() error {
	_, err := skbFields()
	return err
}

var errSKBLayout = errors.New("struct sk_buff has another layout than expected")

// skbLayout returns constants for the fields of struct sk_buff that no helper returns, from the running kernel's BTF.
// The data plane reads them in one window of skbWindow bytes: offsets are relative to it, in bytes, and the shift is in
// bits. It returns errSKBLayout if this kernel has them elsewhere.
func skbLayout(skb *btf.Struct) (map[string]any, error) {
	offsets, bits := map[string]uint32{}, uint32(0)
	for _, name := range []string{"ip_summed", "csum_start", "csum_offset", "mac_header"} {
		m, offset, found := findMember(skb.Members, name, 0)
		if !found {
			return nil, fmt.Errorf("%w: no field %s", errSKBLayout, name)
		}
		if name == "ip_summed" {
			bits = uint32(offset%8) + uint32(m.BitfieldSize)<<8
		}
		offsets[name] = uint32(offset / 8)
	}
	window := offsets["ip_summed"] &^ 7
	shift, size := bits&0xff, bits>>8
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 { // there, bit fields are counted from the highest bit
		shift = 8 - shift - size
	}
	last := max(offsets["csum_start"]+4, offsets["mac_header"]+2)
	if size != 2 || offsets["csum_offset"] != offsets["csum_start"]+2 ||
		min(offsets["csum_start"], offsets["mac_header"]) < window || last > window+skbWindow {
		return nil, fmt.Errorf("%w: %v", errSKBLayout, offsets)
	}
	return map[string]any{
		"kerb_skb_window":          window,
		"kerb_skb_ip_summed":       offsets["ip_summed"] - window,
		"kerb_skb_ip_summed_shift": shift,
		"kerb_skb_csum":            offsets["csum_start"] - window,
		"kerb_skb_mac_header":      offsets["mac_header"] - window,
	}, nil
}

// findMember looks for a member, also in anonymous structures and unions. The offset is in bits.
func findMember(members []btf.Member, name string, base btf.Bits) (btf.Member, btf.Bits, bool) {
	for _, m := range members {
		if m.Name == name {
			return m, base + m.Offset, true
		}
		if m.Name != "" {
			continue
		}
		var inner []btf.Member
		switch t := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			inner = t.Members
		case *btf.Union:
			inner = t.Members
		}
		if found, offset, ok := findMember(inner, name, base+m.Offset); ok {
			return found, offset, true
		}
	}
	return btf.Member{}, 0, false
}

// setSKBConstants sets the constants that a data plane declares.
func setSKBConstants(spec *ebpf.CollectionSpec) error {
	if spec.Variables["kerb_skb_window"] == nil {
		return nil
	}
	a, err := skbFields()
	if err != nil {
		return nil // kerb doctor says so
	}
	for name, value := range a.constants {
		if v := spec.Variables[name]; v != nil {
			if err := setConstant(v, value); err != nil {
				return fmt.Errorf("constant %s: %w", name, err)
			}
		}
	}
	return nil
}
