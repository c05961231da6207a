// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"slices"
	"sync"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"

	"github.com/kerb-edge/kerb/internal/chain"
)

// isSelfContained reports whether a function takes only numbers and the hook's context. Such a function may stay
// global: the verifier then checks it separately and only once, which keeps large modules within its limits.
func isSelfContained(fn *btf.Func) bool {
	proto, ok := fn.Type.(*btf.FuncProto)
	if !ok {
		return false
	}
	for _, p := range proto.Params {
		switch btf.UnderlyingType(p.Type).(type) {
		case *btf.Int:
		case *btf.Pointer:
			if !isContext(p.Type) {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// isContext reports whether a type is a pointer to the context of a hook.
func isContext(t btf.Type) bool {
	to, ok := btf.UnderlyingType(t).(*btf.Pointer)
	if !ok {
		return false
	}
	s, ok := btf.UnderlyingType(to.Target).(*btf.Struct)
	return ok && (s.Name == "__sk_buff" || s.Name == "xdp_md")
}

// A global function that moves packet data invalidates the caller's packet pointers, as a helper that moves it does.
// The verifier knows this of global functions from Linux 6.13 on, but not of those that write to a packet with
// bpf_dynptr_write. Otherwise it lets the caller read through its old pointers, into memory that may be freed. In this
// case the linker calls such a function through a static one, which then calls a helper that changes nothing but after
// which the verifier considers all packet pointers invalid. That costs 32 bytes of stack. Built-in modules, some of
// which have no stack left, are exempt: newer kernels verify the same code.

const linux6_13 = 6<<16 | 13<<8

// verifierTracksMoves reports whether the running kernel's verifier knows which global functions move packet data with
// other helpers.
var verifierTracksMoves = sync.OnceValue(func() bool {
	version, err := features.LinuxVersionCode()
	return err == nil && version >= linux6_13
})

// movingHelpers are the helpers of both hooks that invalidate packet pointers (bpf_helper_changes_pkt_data).
var movingHelpers = []asm.BuiltinFunc{
	asm.FnSkbVlanPush, asm.FnSkbVlanPop, asm.FnSkbStoreBytes, asm.FnSkbChangeProto, asm.FnSkbChangeHead,
	asm.FnSkbChangeTail,
	asm.FnSkbPullData, asm.FnSkbAdjustRoom, asm.FnCloneRedirect, asm.FnL3CsumReplace, asm.FnL4CsumReplace,
	asm.FnXdpAdjustHead, asm.FnXdpAdjustMeta, asm.FnXdpAdjustTail,
}

// untrackedMoves returns the functions of an object that move packet data by calls which the running kernel's verifier
// does not recognize.
func untrackedMoves(code asm.Instructions, hook chain.Hook) map[string]bool {
	moves := map[string]bool{}
	if !verifierTracksMoves() {
		moves = callersOf(code, func(ins *asm.Instruction) bool {
			return ins.IsBuiltinCall() && slices.Contains(movingHelpers, asm.BuiltinFunc(ins.Constant))
		})
	}
	if hook == chain.XDP { // there, a write through a dynptr moves nothing
		return moves
	}
	// Dynptrs of packets come from a kernel function (bpf_dynptr_from_skb), others from helpers.
	makers := callersOf(code, func(ins *asm.Instruction) bool { return ins.IsKfuncCall() })
	writers := callersOf(code, func(ins *asm.Instruction) bool {
		return ins.IsBuiltinCall() && asm.BuiltinFunc(ins.Constant) == asm.FnDynptrWrite
	})
	for name := range writers {
		moves[name] = moves[name] || makers[name]
	}
	return moves
}

// callersOf returns the functions of an object that make a call, directly or indirectly.
func callersOf(code asm.Instructions, call func(*asm.Instruction) bool) map[string]bool {
	moves, callers := map[string]bool{}, map[string][]string{}
	var found []string
	var name string
	for i := range code {
		ins := &code[i]
		if btf.FuncMetadata(ins) != nil {
			name = ins.Symbol()
		}
		if ins.IsFunctionReference() {
			callers[ins.Reference()] = append(callers[ins.Reference()], name)
		} else if call(ins) {
			found = append(found, name)
		}
	}
	for len(found) > 0 {
		name, found = found[0], found[1:]
		if !moves[name] {
			moves[name] = true
			found = append(found, callers[name]...)
		}
	}
	return moves
}

// fence redirects calls of global functions that move packet data to functions that it returns.
func (l *linker) fence(code asm.Instructions, entry string, g *mapSet) (out asm.Instructions) {
	if g == nil || g.BuiltIn {
		return nil
	}
	moves, fenced := untrackedMoves(code, l.spec.Side.Hook()), map[string]string{}
	for i := range code {
		fn := btf.FuncMetadata(&code[i])
		name := code[i].Symbol()
		if fn != nil && name != entry && moves[name] && fn.Linkage == btf.GlobalFunc && isSelfContained(fn) &&
			contextOf(fn) >= 0 { // without a context it cannot reach the packet
			fenced[name] = name + "_fenced"
			out = append(out, l.fenced(fn, name, fenced[name])...)
		}
	}
	for i := range code {
		if to := fenced[code[i].Reference()]; to != "" && code[i].IsFunctionCall() {
			code[i] = code[i].WithReference(to)
		}
	}
	return out
}

// contextOf returns the index of the parameter that is the hook's context, -1 if there is none.
func contextOf(fn *btf.Func) int {
	return slices.IndexFunc(fn.Type.(*btf.FuncProto).Params, func(p btf.FuncParam) bool { return isContext(p.Type) })
}

// fenced calls a function, and then a helper that fails before it has an effect.
func (l *linker) fenced(fn *btf.Func, to, name string) asm.Instructions {
	proto := fn.Type.(*btf.FuncProto)
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1+asm.Register(contextOf(fn))),
		asm.Call.Label(to),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R2, 0),
	}
	if l.spec.Side.Hook() == chain.XDP {
		code = append(code, asm.FnXdpAdjustMeta.Call()) // by 0 bytes
	} else {
		code = append(code, asm.Mov.Imm(asm.R3, 0), asm.Mov.Imm(asm.R4, 0), asm.Mov.Imm(asm.R5, 0x10), // no such flag
			asm.FnL3CsumReplace.Call())
	}
	code = append(code, asm.Mov.Reg(asm.R0, asm.R7), asm.Return())
	static := &btf.Func{Name: name, Type: proto, Linkage: btf.StaticFunc}
	code[0] = btf.WithFuncMetadata(code[0].WithSymbol(name), static)
	return code
}
