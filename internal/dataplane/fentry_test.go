// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
)

// kernelContext is the structure of the kernel that a program's context is for an observer, and how one field of it,
// or the distance between two, is read.
type kernelContext struct{ structure, field, from string }

var packetContexts = map[chain.Hook]kernelContext{
	chain.XDP: {"xdp_buff", "data_end", "data"},
	chain.TC:  {"sk_buff", "len", ""},
}

// observed is what an observer has counted.
type observed struct{ Runs, Sum, Result uint64 }

// observe attaches a program to the entry, or to the exit, of another one, as xdpdump does, and returns how to read
// what it counted: runs, the sum of what it read of the context, and, at the exit, the last return value.
func observe(t *testing.T, target *ebpf.Program, function string, at ebpf.AttachType,
	context kernelContext) func() observed {
	t.Helper()
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 24, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { counts.Close() })
	code := append(asm.Instructions{
		asm.LoadMem(asm.R8, asm.R1, 8, asm.DWord), // behind the only argument
		asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord),
	}, context.read(t)...)
	if at == ebpf.AttachTraceFEntry {
		code[0] = asm.Mov.Imm(asm.R8, 0)
	}
	code = append(code,
		asm.LoadMapValue(asm.R1, counts.FD(), 0),
		asm.Mov.Imm(asm.R2, 1),
		asm.StoreXAdd(asm.R1, asm.R2, asm.DWord),
		asm.Add.Imm(asm.R1, 8),
		asm.StoreXAdd(asm.R1, asm.R7, asm.DWord),
		asm.StoreMem(asm.R1, 8, asm.R8, asm.DWord),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: at, AttachTarget: target,
		AttachTo: function, License: "GPL", Instructions: code})
	if err != nil {
		t.Fatalf("observer of %s: %+v", function, err)
	}
	t.Cleanup(func() { prog.Close() })
	l, err := link.AttachTracing(link.TracingOptions{Program: prog, AttachType: at})
	if err != nil {
		t.Fatalf("attach to %s: %v", function, err)
	}
	t.Cleanup(func() { l.Close() })
	return func() (o observed) {
		if err := counts.Lookup(uint32(0), &o); err != nil {
			t.Fatal(err)
		}
		return o
	}
}

// read computes the number into R7, of the context in R6. The verifier takes that only if it knows what R6 points to.
func (c kernelContext) read(t *testing.T) asm.Instructions {
	t.Helper()
	types, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	var context *btf.Struct
	if err := types.TypeByName(c.structure, &context); err != nil {
		t.Fatal(err)
	}
	load := func(to asm.Register, field string) asm.Instruction {
		m, offset, found := findMember(context.Members, field, 0)
		size, err := btf.Sizeof(m.Type)
		if !found || err != nil {
			t.Fatalf("struct %s has no field %s: %v", c.structure, field, err)
		}
		return asm.LoadMem(to, asm.R6, int16(offset/8),
			map[int]asm.Size{1: asm.Byte, 2: asm.Half, 4: asm.Word, 8: asm.DWord}[size])
	}
	code := asm.Instructions{load(asm.R7, c.field)}
	if c.from != "" {
		code = append(code, load(asm.R0, c.from), asm.Sub.Reg(asm.R7, asm.R0))
	}
	return code
}

// needTracing skips where no program may observe another one, which all kernels of the matrix let.
func needTracing(t *testing.T) {
	t.Helper()
	needsRoot(t)
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Tracing, AttachType: ebpf.AttachTraceFEntry,
		AttachTo: "tcp_v4_connect", License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err == nil {
		prog.Close()
		return
	}
	if os.Getenv("KERB_MATRIX") != "" || !errors.Is(err, unix.EPERM) {
		t.Fatal(err)
	}
	t.Skipf("this kernel refuses tracing programs: %v", err)
}

// A program at the entry or the exit of a chain gets the packet with its type, as xdpdump and pwru need it, whatever
// the chain is made of.
func TestChainsAreObserved(t *testing.T) {
	needTracing(t)
	for _, s := range sides {
		for name, modules := range map[string][]Module{
			"empty":       nil,
			"one":         {testModule(t, "pass", "before", nil)},
			"drops":       {testModule(t, "pass", "before", nil), testModule(t, "drop", "dropper", map[string]any{"port": 53})},
			"unavailable": {Unavailable("gone", true)},
		} {
			t.Run(fmt.Sprint(s.side, " ", name), func(t *testing.T) {
				l := load(t, s.side, s.dir, modules...)
				testObserved(t, l.Program, s.side, l.chain.spec)
				trace, err := NewTrace(TraceFilter{})
				if err != nil {
					t.Fatal(err)
				}
				defer trace.Close()
				traced, err := l.Trace(trace, l.chain.spec)
				if err != nil {
					t.Fatal(err)
				}
				defer traced.Close()
				testObserved(t, traced, s.side, l.chain.spec)
			})
		}
	}
}

// testObserved runs packets through a chain that is observed at both ends.
func testObserved(t *testing.T, chain *ebpf.Program, side chain.Side, spec chain.Spec) {
	t.Helper()
	context := packetContexts[side.Hook()]
	entry := observe(t, chain, programName(spec), ebpf.AttachTraceFEntry, context)
	exit := observe(t, chain, programName(spec), ebpf.AttachTraceFExit, context)
	var want observed
	for _, packet := range [][]byte{udpPacket(t, 9, make([]byte, 100)), udpPacket(t, 53, nil)} {
		ret, _ := run(t, chain, packet)
		want.Runs++
		want.Sum += uint64(len(packet))
		want.Result = uint64(uint32(ret))
	}
	got := exit()
	got.Result = uint64(uint32(got.Result))
	if got != want {
		t.Errorf("at the exit %+v, want %+v", got, want)
	}
	want.Result = 0
	if got := entry(); got != want {
		t.Errorf("at the entry %+v, want %+v", got, want)
	}
}

// Programs on sockets are observed with their contexts, too.
func TestSocketProgramsAreObserved(t *testing.T) {
	needTracing(t)
	l, dir := loadSocketsAlone(t)
	ops := observe(t, l.sockets.progs[string(chain.All)], "all", ebpf.AttachTraceFEntry,
		kernelContext{"bpf_sock_ops_kern", "op", ""})
	messages := observe(t, l.sockets.progs[messagesPin], "redirect", ebpf.AttachTraceFExit,
		kernelContext{"sk_msg", "apply_bytes", ""})
	if err := l.Attach(dir, chain.All); err != nil {
		t.Fatal(err)
	}
	p := connect(t)
	p.send(t, "hello")
	p.expect(t, "hello")
	if n := ops(); n.Runs < 2 || n.Sum == 0 {
		t.Errorf("operations of sockets: %+v, want both ends' and their numbers", n)
	}
	if n := messages(); n.Runs != 1 || n.Result != 1 { // SK_PASS
		t.Errorf("messages: %+v, want 1, which passes", n)
	}
}
