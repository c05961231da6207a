// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// Inspection is the output of `kerb package inspect`.
type Inspection struct {
	Manifest Manifest     `json:"manifest"`
	Source   string       `json:"source"`
	Digest   string       `json:"digest"`
	Memory   int64        `json:"memoryBytes"` // of all maps when full
	Hooks    []HookReport `json:"hooks"`
	Maps     []MapReport  `json:"maps"`
}

// HookReport is one compiled data plane.
type HookReport struct {
	Hook      string           `json:"hook"`
	Object    string           `json:"object"`
	Bytes     int              `json:"bytes"`
	Functions []FunctionReport `json:"functions"`
	Constants []string         `json:"constants,omitempty"`
}

// FunctionReport is one function of a data plane. Entry points come with the functions that they call.
type FunctionReport struct {
	Name         string `json:"name"`
	Instructions int    `json:"instructions"` // in 8-byte units
}

// MapReport is one map. Role is config, shared or state.
type MapReport struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	Role       string `json:"role"`
	KeySize    uint32 `json:"keySize"`
	ValueSize  uint32 `json:"valueSize"`
	MaxEntries uint32 `json:"maxEntries"`
	Memory     int64  `json:"memoryBytes"`
}

// Inspect describes the package. It fails like Spec.
func (p *Package) Inspect() (*Inspection, error) {
	specs, err := p.Specs()
	if err != nil {
		return nil, err
	}
	in := &Inspection{Manifest: p.Manifest, Source: p.Source, Digest: p.Digest, Memory: p.Memory(nil)}
	seen := map[string]bool{}
	for _, hook := range p.Hooks {
		in.Hooks = append(in.Hooks, p.inspectHook(hook, specs[hook]))
		for name, m := range specs[hook].Maps {
			if !seen[name] && !strings.HasPrefix(name, ".") {
				in.Maps = append(in.Maps, p.inspectMap(name, m))
			}
			seen[name] = true
		}
	}
	sort.Slice(in.Maps, func(i, j int) bool { return in.Maps[i].Name < in.Maps[j].Name })
	return in, nil
}

func (p *Package) inspectHook(hook string, spec *ebpf.CollectionSpec) HookReport {
	report := HookReport{Hook: hook, Object: p.Object(hook), Bytes: len(p.objects[hook]()), Functions: functions(spec)}
	for _, name := range slices.Sorted(maps.Keys(spec.Variables)) {
		if spec.Variables[name].Constant() {
			report.Constants = append(report.Constants, name)
		}
	}
	return report
}

// functions returns the instructions by function. A function that both entry points call counts once.
func functions(spec *ebpf.CollectionSpec) []FunctionReport {
	sizes := map[string]int{}
	for _, prog := range spec.Programs {
		for name, n := range functionSizes(prog) {
			sizes[name] = n
		}
	}
	var out []FunctionReport
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		out = append(out, FunctionReport{Name: name, Instructions: sizes[name]})
	}
	return out
}

// functionSizes returns the instructions of each function of a program, counted in slots of 8 bytes as the kernel
// does: a 64-bit load is two.
func functionSizes(prog *ebpf.ProgramSpec) map[string]int {
	sizes := map[string]int{}
	name := prog.Name
	for i := range prog.Instructions {
		ins := &prog.Instructions[i]
		if fn := btf.FuncMetadata(ins); fn != nil {
			name = fn.Name
		}
		sizes[name] += int(ins.Size()) / 8
	}
	return sizes
}

func (p *Package) inspectMap(name string, m *ebpf.MapSpec) MapReport {
	role := "state"
	switch {
	case slices.Contains(p.Maps.Config, name):
		role = "config"
	case slices.Contains(p.Maps.Shared, name):
		role = "shared"
	}
	return MapReport{Name: name, Type: m.Type.String(), Role: role, KeySize: m.KeySize, ValueSize: m.ValueSize,
		MaxEntries: m.MaxEntries, Memory: MapMemory(m)}
}
