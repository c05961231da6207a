// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane/optimize"
)

// Numbers shared with chain.bpf.c.
const (
	callTCEgress   = 1 << 0
	callVeth       = 1 << 1
	callCountShift = 8
	exits          = 4 // counts of a module: drop, reply, redirect, deferred redirect
)

// Actions of the hooks after NEXT from every module, and for packets that must not pass.
const (
	xdpPass, xdpDrop = 2, 1
	tcNext, tcShot   = -1, 2
)

// linker combines the code of a chain. Functions become static: the verifier then checks them in the caller's context,
// and packet pointers in the context, which is on the entry's stack, stay known from module to module. Only functions
// that stand alone stay global.
type linker struct {
	spec   chain.Spec
	object *ebpf.CollectionSpec // chain.bpf.c; other linkers use it, too
	maps   map[string]*ebpf.Map // of chain.bpf.c
	// state of the program that is being linked (kinds.go)
	facts   map[string][]optimize.Fact
	members []*mapSet
	objects map[*mapSet]*ebpf.CollectionSpec // of members, for the hook, loaded on demand
	traced  int32                            // number of the chain in a trace, 0 for none
	parts   int                              // the number that the chain is known to need, 0 if unknown
	frags   bool
	context *btf.Struct // of the hook: struct __sk_buff or struct xdp_md
	pktSize int32       // of struct kerb_pkt
	// offsets in it
	toIfindex, toFlags, kind int16
	note                     int16              // after it, in a traced chain: what a module noted
	frame                    int32              // bytes from the frame pointer of the entry down to the packet context
	plain                    *linkedChain       // whose counters a traced or timed chain uses; nil: new ones
	expressions              sessionExpressions // of a traced chain
	functions                bool               // modules are not inlined
	uncounted                bool               // packets are not counted, to measure what counting costs
	samples                  *ebpf.Map          // the timed copy's programs; nil: no packet runs in a copy
	timed                    bool               // this is the copy
	slower                   time.Duration      // of packets that it keeps
	background               bool               // no change waits for it
	exits                    []int              // members with kerb_exit
	takesOver, handsOver     bool               // of target and label: from the part before, to the next one
}

func newLinker(spec chain.Spec, members []*mapSet) (*linker, error) {
	frags := spec.Side == chain.OnXDP && len(members) > 0 && haveXDPFrags()
	for _, g := range members {
		frags = frags && g.Frags
	}
	return newLinkerFor(spec, members, frags)
}

// newLinkerFor prepares to link a chain of members in packet order. frags selects the head for XDP programs that accept
// packets in several buffers (Linux 5.18). Offsets in struct kerb_pkt come from the head's BTF, not from a copy of the
// layout in Go.
func newLinkerFor(spec chain.Spec, members []*mapSet, frags bool) (*linker, error) {
	l := &linker{spec: spec, members: members, objects: map[*mapSet]*ebpf.CollectionSpec{},
		maps: map[string]*ebpf.Map{}, frags: frags}
	name := string(spec.Side.Hook())
	if l.frags {
		name = "xdp-frags"
	}
	var err error
	if l.object, err = chainObjects[name].Get(); err != nil {
		return nil, err
	}
	var pkt *btf.Struct
	if err := l.object.Types.TypeByName("kerb_pkt", &pkt); err != nil {
		return nil, fmt.Errorf("chain object: %w", err)
	}
	context := map[chain.Hook]string{chain.XDP: "xdp_md", chain.TC: "__sk_buff"}[spec.Side.Hook()]
	if err := l.object.Types.TypeByName(context, &l.context); err != nil {
		return nil, fmt.Errorf("chain object: %w", err)
	}
	l.pktSize = int32(pkt.Size+7) &^ 7
	l.note = int16(l.pktSize)
	if l.toIfindex, err = pktField(pkt, "to_ifindex"); err != nil {
		return nil, err
	}
	if l.kind, err = pktField(pkt, "family"); err != nil {
		return nil, err
	}
	l.toFlags, err = pktField(pkt, "to_flags")
	return l, err
}

// link generates the program for some members of the chain. Unless they are the last ones, it ends with a tail call to
// the next slot of parts.
func (l *linker) link(first, last int, parts *ebpf.Map, slot int) (asm.Instructions, error) {
	if err := l.handOver(first, last, parts != nil); err != nil {
		return nil, err
	}
	parser := "kerb_head"
	if first > 0 { // packets that cannot be parsed have been counted
		parser = "kerb_head_again"
	}
	code, err := l.function(l.object, parser, parser, nil)
	if err != nil {
		return nil, err
	}
	head := newBody(parser, code)
	var modules []body
	for i := first; i < last; i++ {
		code, err := l.module(i)
		if err != nil {
			return nil, err
		}
		modules = append(modules, l.noting(l.symbol(i), code))
	}
	if code, err = l.function(l.object, "kerb_verdict", "kerb_verdict", nil); err != nil {
		return nil, err
	}
	verdict := newBody("kerb_verdict", code)
	begin := l.begin(first)
	if code, err = l.function(l.object, begin, begin, nil); err != nil {
		return nil, err
	}
	start := newBody(begin, code)
	exits, err := l.exitFunctions()
	if err != nil {
		return nil, err
	}
	code = l.entry(first, start, head, modules, verdict, parts, slot) // which finds the facts
	l.markEntry(code)
	out := []asm.Instructions{optimize.Code(code, l.facts), start.rest(), head.rest()}
	for _, m := range modules {
		out = append(out, m.rest())
	}
	if len(modules) == 0 { // the kernel rejects functions that are never called
		return optimize.Called(out...), nil
	}
	out = append(out, verdict.rest(), exits)
	for _, name := range l.extras(first, last) {
		if code, err = l.function(l.object, name, name, nil); err != nil {
			return nil, err
		}
		if code, err = l.withExpressions(code); err != nil {
			return nil, err
		}
		out = append(out, code)
	}
	return optimize.Called(out...), nil
}

// begin generates the function before the head.
func (l *linker) begin(first int) string {
	switch {
	case first > 0 || l.uncounted:
		return "kerb_enter"
	case l.timed:
		return "kerb_time_start"
	}
	return "kerb_count"
}

// extras are the functions that only some programs call.
func (l *linker) extras(first, last int) (names []string) {
	if l.sampled(first) {
		names = append(names, "kerb_sample")
	}
	if l.timed {
		names = append(names, "kerb_stamp", "kerb_slow_head", "kerb_slow_module", "kerb_slow_end")
	}
	if slices.ContainsFunc(sequence(first, last), l.defers) {
		names = append(names, "kerb_deferred")
	}
	if slices.ContainsFunc(l.spec.Members[first:last], failsOpen) {
		names = append(names, "kerb_bad_verdict")
	}
	if l.traced != 0 {
		names = append(names, "kerb_trace")
		if first == 0 {
			names = append(names, "kerb_trace_head")
		}
	}
	return names
}

func failsOpen(m chain.Member) bool { return !m.FailClosed }

func sequence(first, last int) (all []int) {
	for i := first; i < last; i++ {
		all = append(all, i)
	}
	return all
}

// module returns the code of a member, with every name prefixed by its position in the chain.
func (l *linker) module(i int) (asm.Instructions, error) {
	g := l.members[i]
	if g.ID == UnavailableID {
		return l.unavailable(l.symbol(i))
	}
	spec, err := l.objectOf(i)
	if err != nil {
		return nil, err
	}
	entry := "kerb_" + string(l.spec.Direction)
	if spec == nil || spec.Programs[entry] == nil {
		return nil, fmt.Errorf("module %s: %w on %s %s", g.Name, ErrNoEntry, l.spec.Side, l.spec.Direction)
	}
	if err := checkLicense(spec.Programs[entry].License); err != nil {
		return nil, fmt.Errorf("module %s: %w", g.Name, err)
	}
	body, err := l.function(spec, entry, l.symbol(i), g)
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", g.Name, err)
	}
	return l.withParser(body, l.symbol(i))
}

// objectOf returns the object of a member for the hook of the chain, nil if it has none.
func (l *linker) objectOf(i int) (spec *ebpf.CollectionSpec, err error) {
	g := l.members[i]
	if l.objects[g] == nil && g.Spec != nil {
		if spec, err = g.Spec(l.spec.Side.Hook()); err != nil {
			return nil, fmt.Errorf("module %s: %w", g.Name, err)
		}
		l.objects[g] = spec
	}
	return l.objects[g], nil
}

// withParser adds the parser to a module that calls it, which only the adaptor for programs that were not made for Kerb
// does.
func (l *linker) withParser(code asm.Instructions, symbol string) (asm.Instructions, error) {
	parser := symbol + "__kerb_parse_again"
	if !slices.ContainsFunc(code, func(ins asm.Instruction) bool { return ins.Reference() == parser }) {
		return code, nil
	}
	added, err := l.function(l.object, "kerb_parse_again", parser, nil)
	return append(code, added...), err
}

// symbol is the name of member i's function, which bpftool shows.
func (l *linker) symbol(i int) string {
	return fmt.Sprintf("m%02d_%s", i, strings.ReplaceAll(l.members[i].Name, "-", "_"))
}

// checkLicense: a chain is one program with one licence, which lets it call helpers that are for GPL programs only.
func checkLicense(license string) error {
	switch license {
	case "GPL", "GPL v2", "Dual BSD/GPL", "Dual MIT/GPL", "Dual MPL/GPL", "GPL and additional rights":
		return nil
	}
	return fmt.Errorf("licence %q is not GPL-compatible: %w", license, ErrLicense)
}

// function returns an entry with all functions that it needs, renamed to prefix (the entry) and prefix__name (the
// others), and with its maps resolved.
func (l *linker) function(spec *ebpf.CollectionSpec, entry, prefix string, g *mapSet) (asm.Instructions, error) {
	prog := spec.Programs[entry]
	if prog == nil {
		return nil, fmt.Errorf("function %s is missing", entry)
	}
	rename := func(name string) string {
		if name == entry {
			return prefix
		}
		return prefix + "__" + name
	}
	code := make(asm.Instructions, len(prog.Instructions))
	copy(code, prog.Instructions)
	if err := l.relocate(code); err != nil {
		return nil, err
	}
	code, err := l.fold(append(code, l.fence(code, entry, g)...), g)
	if err != nil {
		return nil, err
	}
	LinkKernelFunctions(code)
	for i := range code {
		ins := &code[i]
		if name := ins.Symbol(); name != "" {
			*ins = ins.WithSymbol(rename(name))
		}
		if fn := btf.FuncMetadata(ins); fn != nil {
			linked := *fn
			linked.Name = rename(fn.Name)
			if fn.Name == entry || fn.Linkage == btf.StaticFunc || !isSelfContained(fn) {
				linked.Linkage = btf.StaticFunc
			}
			*ins = btf.WithFuncMetadata(*ins, &linked)
		}
		if ins.IsFunctionReference() {
			*ins = ins.WithReference(rename(ins.Reference()))
			continue
		}
		if ins.IsLoadFromMap() && ins.Reference() != "" {
			m, err := l.mapOf(ins.Reference(), g)
			if err != nil {
				return nil, err
			}
			if g == nil && ins.Reference() == countsMap {
				ins.Src = asm.PseudoMapValue
			}
			if err := ins.AssociateMap(m); err != nil {
				return nil, fmt.Errorf("map %s: %w", ins.Reference(), err)
			}
		}
	}
	return code, nil
}

// mapOf returns the map that an instruction names: of a member, or of the chain itself if g is nil.
func (l *linker) mapOf(name string, g *mapSet) (*ebpf.Map, error) {
	m := l.maps[name]
	if g != nil {
		m = g.maps[mapPin(l.spec.Side.Hook(), name)]
	}
	if m == nil {
		return nil, fmt.Errorf("map %s is missing", name)
	}
	return m, nil
}

// callFlags tell kerb_verdict about module i and the hook.
func (l *linker) callFlags(i int) (flags int32) {
	if l.spec.Side == chain.OnTCEgress {
		flags |= callTCEgress
	}
	if l.spec.Veth {
		flags |= callVeth
	}
	if !l.uncounted {
		flags |= int32(1+i) << callCountShift
	}
	return flags
}

func (l *linker) action(xdp, tc int32) int32 {
	if l.spec.Side == chain.OnXDP {
		return xdp
	}
	return tc
}

// missingPart returns the verdict for a failed tail call: the kernel allows 33 in a row, and an empty slot falls
// through. Packets are dropped if any member fails closed.
func (l *linker) missingPart() int32 {
	for _, m := range l.spec.Members {
		if m.FailClosed {
			return l.action(xdpDrop, tcShot)
		}
	}
	return l.action(xdpPass, tcNext)
}

// entryType is the BTF of the generated entry, int kerb_<chain>(struct __sk_buff *ctx) or struct xdp_md: the name that
// bpftool and perf show. The kernel passes the packet to programs that observe this one only if the type is the hook's
// own.
func (l *linker) entryType() *btf.Func {
	return functionType(programName(l.spec), btf.GlobalFunc, "ctx", l.context)
}

// functionType is the BTF of int name(target *param).
func functionType(name string, linkage btf.FuncLinkage, param string, target btf.Type) *btf.Func {
	return &btf.Func{Name: name, Linkage: linkage, Type: &btf.FuncProto{
		Return: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed},
		Params: []btf.FuncParam{{Name: param, Type: &btf.Pointer{Target: target}}},
	}}
}

// programSpec wraps linked code for loading.
func (l *linker) programSpec(code asm.Instructions, name string) *ebpf.ProgramSpec {
	addLines(code)
	spec := &ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: code,
		ByteOrder: l.object.ByteOrder}
	if l.spec.Side == chain.OnXDP {
		// One fixed attach type: the kernel refuses to replace a program by one with another type.
		spec.Type, spec.AttachType = ebpf.XDP, ebpf.AttachXDP
		if l.frags {
			spec.Flags |= xdpHasFrags
		}
	}
	return spec
}

const xdpHasFrags = 1 << 5 // BPF_F_XDP_HAS_FRAGS, Linux 5.18
