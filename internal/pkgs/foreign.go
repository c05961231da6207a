// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// adaptorVersion changes with the code that adapt generates, so that chains with the old code are replaced.
const adaptorVersion = "2"

// ErrNoRunnableProgram is returned for foreign objects without a program for one of Kerb's hooks, or with several.
var ErrNoRunnableProgram = errors.New("has no program that Kerb can run")

// foreignTypes maps the program types of foreign objects to hooks.
var foreignTypes = map[string]string{"xdp": HookXDP, "tc": HookTC, "tcx": HookTC, "classifier": HookTC,
	"sched_cls": HookTC}

// verdict maps an action of XDP or TC to a verdict.
type verdict struct{ action, verdict int32 }

// noVerdict stands for actions without a verdict, such as redirects, whose target Kerb cannot see. The failure policy
// decides about these packets.
const noVerdict = 0xff

var verdicts = map[string][]verdict{
	HookXDP: {{2, 0}, {1, 1}, {0, 1}, {3, 2}},  // PASS; DROP, ABORTED; TX
	HookTC:  {{0, 0}, {-1, 0}, {3, 0}, {2, 1}}, // OK, UNSPEC, PIPE; SHOT
}

// OpenForeign returns a package for an object that was not built for Kerb and has no manifest. programs maps the names
// of its programs to their types. The package has no configuration. Programs with the names of Kerb's entry points are
// used unchanged; otherwise the object may have one program each for XDP and TC, which runs in both directions.
func OpenForeign(name, source string, object []byte, programs map[string]string) (*Package, error) {
	m := &Manifest{Name: foreignName(name), Version: "0.0.0", Contract: Contract, FailurePolicy: "open"}
	whole := map[string]string{}
	for _, program := range slices.Sorted(maps.Keys(programs)) {
		hook := foreignTypes[strings.ToLower(programs[program])]
		if hook == "" {
			continue
		}
		own := program == EntryEgress || program == EntryIngress
		if other, ok := whole[hook]; ok && (other != "" || !own) {
			return nil, fmt.Errorf("%s: %w: it has several for %s (%s), and Kerb cannot determine which one is meant", source,
				ErrNoRunnableProgram, hook, joinKeys(programs))
		}
		if whole[hook] = program; own {
			whole[hook] = ""
		}
	}
	if len(whole) == 0 {
		return nil, fmt.Errorf("%s: %w: its programs are %s, and Kerb runs those for xdp and tc only", source,
			ErrNoRunnableProgram, joinKeys(programs))
	}
	m.Hooks = slices.Sorted(maps.Keys(whole))
	m.LinkTypes = LinkTypes // not stated
	m.Description = "eBPF image without manifest: " + joinKeys(programs)
	spec, err := loadObject(source, object)
	if err != nil {
		return nil, err
	}
	for _, prog := range spec.Programs {
		m.License = prog.License
	}
	objects := map[string][]byte{}
	for _, hook := range m.Hooks {
		objects[hook] = object
	}
	p := newForeign(m, source, objects, whole)
	_, err = p.Specs()
	return p, err
}

func newForeign(m *Manifest, source string, objects map[string][]byte, whole map[string]string) *Package {
	p := newPackage(m, source, objects, nil)
	p.whole = whole
	p.Digest = p.digest()
	return p
}

func joinKeys(programs map[string]string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(programs)) {
		out = append(out, name+" ("+programs[name]+")")
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ", ")
}

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// foreignName converts any text to a valid package name.
func foreignName(text string) string {
	name := strings.Trim(notInName.ReplaceAllString(strings.ToLower(text), "-"), "-")
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		name = "image-" + name
	}
	return strings.Trim(name[:min(len(name), 32)], "-")
}

// adapt adds Kerb's entry points, which call the foreign program.
func adapt(file string, spec *ebpf.CollectionSpec, hook, program string) error {
	prog := spec.Programs[program]
	if prog == nil {
		return &ObjectError{File: file, What: program, Err: errors.New("is in the image's labels, but not in its object")}
	}
	want := map[string]ebpf.ProgramType{HookXDP: ebpf.XDP, HookTC: ebpf.SchedCLS}[hook]
	if prog.Type != want {
		return &ObjectError{File: file, What: program,
			Err: fmt.Errorf("is a program of type %s, not %s as the image's labels say", prog.Type, want)}
	}
	if btf.FuncMetadata(&prog.Instructions[0]) == nil {
		return &ObjectError{File: file, What: program, Err: ErrNoBTF}
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{}
	for _, entry := range []string{EntryEgress, EntryIngress} {
		adapted := prog.Copy()
		adapted.Name = entry
		adapted.Instructions = append(adaptor(entry, hook, prog), adapted.Instructions...)
		spec.Programs[entry] = adapted
	}
	for _, m := range spec.Maps { // Kerb pins maps elsewhere
		m.Pinning = ebpf.PinNone
	}
	return nil
}

// adaptor generates
//
//	int kerb_<direction>(struct kerb_pkt *pkt)
//	{
//		int action = program(pkt->ctx);
//
//		kerb_parse_again(pkt);
//		return verdict_of(action);
//	}
//
// The linker adds kerb_parse_again (bpf/chain.bpf.c). Jumps are by number, as in compiled code: the linker renames
// functions, not labels.
func adaptor(entry, hook string, prog *ebpf.ProgramSpec) asm.Instructions {
	first := asm.Mov.Reg(asm.R6, asm.R1)
	first = btf.WithFuncMetadata(first.WithSymbol(entry), adaptorType(entry))
	code := asm.Instructions{
		first,
		asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord), // ctx is the first member
		asm.Call.Label(prog.Name),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Call.Label("kerb_parse_again"),
		asm.Mov.Reg(asm.R0, asm.R7),
	}
	for _, v := range verdicts[hook] {
		skip := asm.Instruction{OpCode: asm.JNE.Imm32(asm.R0, 0, "").OpCode, Dst: asm.R0, Offset: 2,
			Constant: int64(v.action)}
		code = append(code, skip, asm.Mov.Imm(asm.R0, v.verdict), asm.Return())
	}
	return append(code, asm.Mov.Imm(asm.R0, noVerdict), asm.Return())
}

func adaptorType(entry string) *btf.Func {
	return &btf.Func{Name: entry, Linkage: btf.StaticFunc, Type: &btf.FuncProto{
		Return: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed},
		Params: []btf.FuncParam{{Name: "pkt", Type: &btf.Pointer{Target: &btf.Void{}}}},
	}}
}
