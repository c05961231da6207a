// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/chain"
)

// infoOf is what the kernel says of a program.
func infoOf(t *testing.T, prog *ebpf.Program) *ebpf.ProgramInfo {
	t.Helper()
	info, err := prog.Info()
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// parts are the instructions of a program by the name that the last line before them gives, and how often it comes.
// Lines of the modules' own source are none of the names.
func parts(t *testing.T, prog *ebpf.Program, names []string) (code map[string]asm.Instructions, times map[string]int) {
	t.Helper()
	info := infoOf(t, prog)
	all, err := info.Instructions()
	if err != nil {
		t.Fatal(err)
	}
	lines, err := info.LineInfos()
	if err != nil {
		t.Fatal(err)
	}
	at := map[asm.RawInstructionOffset]string{}
	for _, l := range lines {
		at[l.Offset] = l.Line.Line()
	}
	code, times = map[string]asm.Instructions{}, map[string]int{}
	name := ""
	for iter := all.Iterate(); iter.Next(); {
		line := at[iter.Offset]
		if slices.Contains(names, line) || strings.HasPrefix(line, "kerb_") {
			name = line
			times[name]++
		}
		code[name] = append(code[name], *iter.Ins)
	}
	return code, times
}

// users are the parts of a program that load the address of a map.
func users(t *testing.T, code map[string]asm.Instructions, m *ebpf.Map) (names []string) {
	t.Helper()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	for name, part := range code {
		if slices.ContainsFunc(part, func(ins asm.Instruction) bool {
			return ins.IsLoadFromMap() && uint32(ins.Constant) == uint32(id)
		}) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Lines of source say which module the instructions of a chain are of, of inlined ones and of copies of them.
func TestLinesNameModules(t *testing.T) {
	for _, s := range sides {
		l := load(t, s.side, s.dir, testModule(t, "pass", "before", nil),
			testModule(t, "drop", "dropper", map[string]any{"port": 53}), testModule(t, "pass", "after", nil))
		entry := programName(l.chain.spec)
		code, times := parts(t, l.Program, []string{"m00_before", "m01_dropper", "m02_after"})
		for _, want := range []struct {
			m     *ebpf.Map
			names []string
		}{
			{l.Maps["before"]["totals"], []string{"m00_before"}},
			{l.Maps["after"]["totals"], []string{"m02_after"}},
			{l.Maps["dropper"][dropsMap], []string{entry}},
		} {
			if names := users(t, code, want.m); !slices.Equal(names, want.names) {
				t.Errorf("%s: %v is used by %v, want %v", s.side, want.m, names, want.names)
			}
		}
		if times["m01_dropper"] != 1 || times["kerb_head"] != 1 {
			t.Errorf("%s: names %v, want each once", s.side, times)
		}
		if again := slices.Sorted(maps.Keys(functions(t, l.Program))); slices.Contains(again, "m00_before") {
			t.Errorf("%s: the module is a function, which is no test of what is inlined: %v", s.side, again)
		}
		var mods []Module
		for i, name := range []string{"first", "second", "third"} {
			mods = append(mods, testModule(t, "kinds", name, map[string]any{"port": uint16(7 + i)}))
		}
		copies := load(t, s.side, s.dir, mods...)
		_, times = parts(t, copies.Program, []string{"m00_first", "m01_second", "m02_third"})
		for _, name := range []string{"m00_first", "m01_second", "m02_third"} {
			if times[name] < 2 || times[name] > 1+len(kinds) {
				t.Errorf("%s: %s is named %d times, want one for each copy: %v", s.side, name, times[name], times)
			}
		}
	}
}

// functions are the addresses of a program's functions by name.
func functions(t *testing.T, prog *ebpf.Program) map[string]uintptr {
	t.Helper()
	info := infoOf(t, prog)
	infos, err := info.FuncInfos()
	if err != nil {
		t.Fatal(err)
	}
	addrs, _ := info.JitedKsymAddrs()
	out := map[string]uintptr{}
	for i, f := range infos {
		out[f.Func.Name] = 0
		if len(addrs) == len(infos) {
			out[f.Func.Name] = addrs[i]
		}
	}
	return out
}

// A chain whose modules stay functions does the same as one that inlines them. The kernel, and thus a profiler, knows
// the functions by the modules' names.
func TestModulesAsFunctions(t *testing.T) {
	for _, s := range sides {
		l := load(t, s.side, s.dir, testModule(t, "pass", "before", nil),
			testModule(t, "drop", "dropper", map[string]any{"port": 53}), testModule(t, "pass", "after", nil))
		spec := l.chain.spec
		spec.Functions = true
		if spec.ID() == l.chain.spec.ID() {
			t.Fatal("the chain has the identity of one with inlined modules, in place of which it would not be put")
		}
		prog, err := l.Relink(spec)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { prog.Close() })
		for port, want := range map[uint16]int32{53: s.drop, 54: s.pass} {
			if ret, _ := run(t, prog, udpPacket(t, port, []byte("x"))); ret != want {
				t.Errorf("%s: port %d: action %d, want %d", s.side, port, ret, want)
			}
		}
		before, _ := counted(t, l.Maps["before"]["totals"])
		after, _ := counted(t, l.Maps["after"]["totals"])
		if before != 2 || after != 1 {
			t.Errorf("%s: before the dropper %d packets, after it %d; want 2 and 1", s.side, before, after)
		}
		all := functions(t, prog)
		symbols := kernelSymbols(t)
		for _, name := range []string{"m00_before", "m01_dropper", "m02_after", programName(spec)} {
			addr, known := all[name]
			if !known {
				t.Errorf("%s: no function %s in %v", s.side, name, all)
			}
			if symbol := symbols[addr]; symbols != nil && !strings.HasSuffix(symbol, "_"+name) {
				t.Errorf("%s: the kernel calls %s %q", s.side, name, symbol)
			}
		}
	}
}

// kernelSymbols are the kernel's names of programs by address; nil where they are not shown.
func kernelSymbols(t *testing.T) map[uintptr]string {
	t.Helper()
	for _, file := range []string{"bpf_jit_enable", "bpf_jit_kallsyms"} {
		if text, err := os.ReadFile("/proc/sys/net/core/" + file); err != nil || strings.TrimSpace(string(text)) != "1" {
			t.Logf("%s is %q (%v): the kernel's symbols are not examined", file, text, err)
			return nil
		}
	}
	text, err := os.ReadFile("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	all := map[uintptr]string{}
	for line := range strings.Lines(string(text)) {
		var addr uintptr
		var kind, name string
		if _, err := fmt.Sscanf(line, "%x %s %s", &addr, &kind, &name); err == nil && strings.HasPrefix(name, "bpf_prog_") {
			all[addr] = name
		}
	}
	if all[0] != "" {
		t.Log("addresses are hidden: the kernel's symbols are not examined")
		return nil
	}
	return all
}

// What has not enough stack for functions is inlined in spite of the setting, and works.
func TestFunctionsNeedStack(t *testing.T) {
	deep := testModule(t, "pass", "deep", nil)
	plain := deep.Spec
	deep.Spec = func(h chain.Hook) (*ebpf.CollectionSpec, error) {
		spec, err := plain(h)
		if err != nil {
			return nil, err
		}
		for _, p := range spec.Programs {
			static := functionType("deeper", btf.StaticFunc, "pkt", &btf.Void{})
			first := &p.Instructions[0]
			p.Instructions = asm.Instructions{
				btf.WithFuncMetadata(asm.Mov.Imm(asm.R0, 0).WithSymbol(first.Symbol()), btf.FuncMetadata(first)),
				asm.StoreImm(asm.RFP, -104, 0, asm.Word),
				asm.Call.Label("deeper"),
				asm.Mov.Imm(asm.R0, 0),
				asm.Return(),
				btf.WithFuncMetadata(asm.StoreImm(asm.RFP, -320, 0, asm.Word).WithSymbol("deeper"), static),
				asm.Mov.Imm(asm.R0, 0),
				asm.Return(),
			}
		}
		return spec, nil
	}
	for _, s := range sides {
		l := load(t, s.side, s.dir, deep)
		spec := l.chain.spec
		spec.Functions = true
		prog, err := l.Relink(spec)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { prog.Close() })
		if _, is := functions(t, prog)["m00_deep"]; is {
			t.Errorf("%s: the kernel took the function, which is no test of what it refuses", s.side)
		}
		if ret, _ := run(t, prog, udpPacket(t, 9, nil)); ret != s.pass {
			t.Errorf("%s: action %d, want %d", s.side, ret, s.pass)
		}
	}
}
