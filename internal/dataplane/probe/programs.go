// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
)

// Verdicts that leave a packet alone.
const (
	xdpPass = 2
	tcxNext = -1 // TC_ACT_UNSPEC: the next program, then the stack
)

// program wraps instructions that may end with anything in R0.
func program(kind ebpf.ProgramType, code ...asm.Instruction) *ebpf.ProgramSpec {
	verdict := int32(tcxNext)
	if kind == ebpf.XDP {
		verdict = xdpPass
	}
	code = append(code, asm.Mov.Imm(asm.R0, verdict), asm.Return())
	return &ebpf.ProgramSpec{Name: objectName, Type: kind, License: "Dual BSD/GPL", Instructions: code}
}

func pass(kind ebpf.ProgramType) *ebpf.ProgramSpec { return program(kind) }

func load(spec *ebpf.ProgramSpec) error {
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		return err
	}
	return p.Close()
}

// testRun loads a program that passes every packet and runs it once by BPF_PROG_TEST_RUN on 64 zero bytes. It returns
// the kernel's error, or an error if the result is not the pass verdict.
func testRun(kind ebpf.ProgramType) error {
	p, err := ebpf.NewProgram(pass(kind))
	if err != nil {
		return err
	}
	defer p.Close()
	got, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64)})
	if want := map[ebpf.ProgramType]int32{ebpf.XDP: xdpPass, ebpf.SchedCLS: tcxNext}[kind]; err == nil &&
		int32(got) != want {
		return fmt.Errorf("the program returned %d instead of %d", int32(got), want)
	}
	return err
}

// Jitted reports whether programs are compiled to machine code.
func Jitted() (bool, error) {
	p, err := ebpf.NewProgram(pass(ebpf.XDP))
	if err != nil {
		return false, err
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return false, err
	}
	size, err := info.JitedSize()
	return size > 0, err
}

// function gives the instruction that begins a function the type info that
// the kernel wants of callbacks and replaceable functions.
func function(name string, linkage btf.FuncLinkage, args int, first asm.Instruction) asm.Instruction {
	number := &btf.Int{Name: "long", Size: 8, Encoding: btf.Signed}
	proto := &btf.FuncProto{Return: number}
	for i := range args {
		proto.Params = append(proto.Params, btf.FuncParam{Name: fmt.Sprintf("a%d", i), Type: number})
	}
	return btf.WithFuncMetadata(first.WithSymbol(name), &btf.Func{Name: name, Type: proto, Linkage: linkage})
}

func entry(args int, first asm.Instruction) asm.Instruction {
	return function(objectName, btf.GlobalFunc, args, first)
}

// tryLoop runs a callback once. Linux 5.17.
func tryLoop() error {
	spec := program(ebpf.XDP,
		entry(1, asm.Mov.Imm(asm.R1, 1)),
		asm.Instruction{OpCode: asm.LoadImmOp(asm.DWord), Dst: asm.R2, Src: asm.PseudoFunc,
			Constant: -1}.WithReference("callback"),
		asm.Mov.Imm(asm.R3, 0),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnLoop.Call())
	spec.Instructions = append(spec.Instructions,
		function("callback", btf.StaticFunc, 2, asm.Mov.Imm(asm.R0, 0)), asm.Return())
	return load(spec)
}

// tryTimer initializes a timer in a map's value. Linux 5.15.
func tryTimer() error {
	opaque := &btf.Int{Name: "unsigned long long", Size: 8}
	timer := &btf.Struct{Name: "bpf_timer", Size: 16, Members: []btf.Member{
		{Name: "a", Type: opaque}, {Name: "b", Type: opaque, Offset: 64}}}
	number := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	value := &btf.Struct{Name: "value", Size: 16, Members: []btf.Member{{Name: "timer", Type: timer}}}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: objectName, Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1,
		Key: number, Value: value})
	if err != nil {
		return err
	}
	defer m.Close()
	return load(program(ebpf.XDP,
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Reg(asm.R1, asm.R0),
		asm.LoadMapPtr(asm.R2, m.FD()),
		asm.Mov.Imm(asm.R3, 1), // CLOCK_MONOTONIC
		asm.FnTimerInit.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out")))
}

// tryLoadBytes reads from a packet that may lie in fragments. Linux 5.18.
func tryLoadBytes() error {
	return load(program(ebpf.XDP,
		asm.Mov.Imm(asm.R2, 0),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, -8),
		asm.Mov.Imm(asm.R4, 8),
		asm.FnXdpLoadBytes.Call()))
}

// tryRedirectPeer only loads: the packet would go to interface 1. Linux 5.10.
func tryRedirectPeer() error {
	return load(program(ebpf.SchedCLS,
		asm.Mov.Imm(asm.R1, 1),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirectPeer.Call()))
}

// tryFentry attaches to a kernel function that exists for tests.
func tryFentry() error {
	spec := program(ebpf.Tracing)
	spec.AttachType, spec.AttachTo = ebpf.AttachTraceFEntry, "bpf_fentry_test1"
	spec.Instructions = asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		return err
	}
	defer p.Close()
	l, err := link.AttachTracing(link.TracingOptions{Program: p})
	if err != nil {
		return err
	}
	return l.Close()
}

// tryFreplace puts a function in the place of another program's.
func tryFreplace() error {
	target := program(ebpf.XDP, contextEntry(objectName, asm.Call.Label("slot")))
	target.Instructions = append(target.Instructions, contextEntry("slot", asm.Mov.Imm(asm.R0, xdpPass)), asm.Return())
	p, err := ebpf.NewProgram(target)
	if err != nil {
		return fmt.Errorf("program with a replaceable function: %w", err)
	}
	defer p.Close()
	spec := program(ebpf.Extension)
	spec.AttachTarget, spec.AttachTo = p, "slot"
	spec.Instructions = asm.Instructions{contextEntry("slot", asm.Mov.Imm(asm.R0, xdpPass)), asm.Return()}
	extension, err := ebpf.NewProgram(spec)
	if err != nil {
		return err
	}
	defer extension.Close()
	l, err := link.AttachFreplace(nil, "", extension)
	if err != nil {
		return err
	}
	return l.Close()
}

// contextEntry begins a global function: int name(struct xdp_md *).
func contextEntry(name string, first asm.Instruction) asm.Instruction {
	number := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	context := &btf.Pointer{Target: &btf.Struct{Name: "xdp_md", Size: 4,
		Members: []btf.Member{{Name: "data", Type: number}}}}
	return btf.WithFuncMetadata(first.WithSymbol(name), &btf.Func{Name: name, Linkage: btf.GlobalFunc,
		Type: &btf.FuncProto{Return: number, Params: []btf.FuncParam{{Name: "ctx", Type: context}}}})
}
