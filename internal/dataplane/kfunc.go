// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"sync"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// Data planes call kernel functions by numbers that no helper has. Otherwise the loader of objects would search for the
// functions among the types of the kernel and all its modules whenever a chain is linked.
const (
	castNumber = 0x6b6572 // bpf_cast_to_kern_ctx
	pullNumber = 0x6b6573 // bpf_xdp_pull_data: KERB_PULL in kerb/parse.h
)

// xdpPull is the type of bpf_xdp_pull_data (Linux 6.18), 0 if the kernel does not have it.
var xdpPull = sync.OnceValue(func() btf.TypeID {
	types, err := btf.LoadKernelSpec()
	if err != nil {
		return 0
	}
	var fn *btf.Func
	if types.TypeByName("bpf_xdp_pull_data", &fn) != nil {
		return 0
	}
	id, err := types.TypeID(fn)
	if err != nil {
		return 0
	}
	return id
})

// CanPullXDP reports whether XDP programs can pull headers into the linear part.
func CanPullXDP() bool { return xdpPull() != 0 }

// LinkKernelFunctions replaces the numbers in calls by functions of the running kernel. A cast that the kernel does not
// support stays, in code that is not reached; a pull is an error instead.
func LinkKernelFunctions(code asm.Instructions) {
	for i := range code {
		ins := &code[i]
		if !ins.IsBuiltinCall() {
			continue
		}
		switch ins.Constant {
		case castNumber:
			if a, err := skbFields(); err == nil && a.cast != 0 {
				ins.Src, ins.Constant = asm.PseudoKfuncCall, int64(a.cast)
			}
		case pullNumber:
			if id := xdpPull(); id != 0 {
				ins.Src, ins.Constant = asm.PseudoKfuncCall, int64(id)
				continue
			}
			fails := asm.Mov.Imm(asm.R0, -int32(unix.EOPNOTSUPP))
			ins.OpCode, ins.Dst, ins.Src, ins.Constant = fails.OpCode, fails.Dst, fails.Src, fails.Constant
		}
	}
}
