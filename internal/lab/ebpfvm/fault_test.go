// SPDX-License-Identifier: Apache-2.0

package ebpfvm

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Invalid memory accesses, which the verifier rejects, are errors.
func TestFaults(t *testing.T) {
	packet := asm.LoadMem(asm.R6, asm.R1, 0, asm.Word)
	for want, code := range map[string]asm.Instructions{
		"of packet, which has":  {packet, asm.LoadMem(asm.R0, asm.R6, 61, asm.Word), asm.Return()},
		"1 bytes at 255":        {packet, asm.LoadMem(asm.R0, asm.R6, -1, asm.Byte), asm.Return()},
		"of stack, which has":   {asm.StoreImm(asm.RFP, 0, 1, asm.Byte), asm.Return()},
		"8 bytes at 4294967288": {asm.StoreMem(asm.RFP, -520, asm.R0, asm.DWord), asm.Return()},
		"is not memory":         {asm.LoadMem(asm.R0, asm.R9, 0, asm.Byte), asm.Return()},
		"of context":            {asm.LoadMem(asm.R0, asm.R1, 189, asm.Word), asm.Return()},
		"more than":             {asm.Ja.Label("again").WithSymbol("again"), asm.Return()},
		"deeper than":           {asm.Mov.Imm(asm.R0, 0).WithSymbol("f"), asm.Call.Label("f"), asm.Return()},
		"jump out of":           {asm.Mov.Imm(asm.R0, 0)},
		"is not known here":     {asm.FnTracePrintk.Call(), asm.Return()},
	} {
		p, err := Load(code, ebpf.XDP)
		if err != nil {
			t.Fatal(err)
		}
		if r, err := New().Run(p, Input{Frame: make([]byte, 64)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", want, r, err)
		}
	}
}

// The number of instructions is that of the executed path, including called functions.
func TestExecuted(t *testing.T) {
	p, err := Load(asm.Instructions{
		asm.Mov.Imm(asm.R0, 3),
		asm.Sub.Imm(asm.R0, 1).WithSymbol("loop"),
		asm.JNE.Imm(asm.R0, 0, "loop"),
		asm.FnXdpGetBuffLen.Call(),
		asm.Call.Label("f"),
		asm.JEq.Imm(asm.R0, 7, "out"),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return().WithSymbol("out"),
		asm.Mov.Imm(asm.R0, 7).WithSymbol("f"),
		asm.Return(),
	}, ebpf.XDP)
	if err != nil {
		t.Fatal(err)
	}
	r, err := New().Run(p, Input{Frame: make([]byte, 64)})
	if err != nil || r.Return != 7 || r.Executed != 1+3*2+1+1+2+1+1 || r.Calls() != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Kernel functions that a program tests for exist in the VM if the kernel has them.
func TestKernelFunctions(t *testing.T) {
	if _, err := btf.LoadKernelSpec(); err != nil {
		t.Skip(err)
	}
	for name, there := range map[string]bool{"bpf_obj_new_impl": true, "bpf_no_such_function": false} {
		p, err := Load(asm.Instructions{asm.LoadImm(asm.R0, 0, asm.DWord).WithReference(name), asm.Return()}, ebpf.XDP)
		if err != nil {
			t.Fatal(err)
		}
		r, err := New().Run(p, Input{Frame: make([]byte, 64)})
		if err != nil || (r.Return != 0) != there {
			t.Errorf("%s: %d, %v", name, r.Return, err)
		}
	}
}
