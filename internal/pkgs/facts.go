// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk"
)

// facts are what every change asks of the data planes. They stay with the package; a parsed data plane takes megabytes
// and is dropped soon (see keepParsed).
type facts struct {
	programs map[string]map[string]bool          // names, by hook
	maps     map[string]map[string]*ebpf.MapSpec // by hook and name, only with what decides on their size
	tunables *ebpf.MapSpec                       // of KERB_TUNABLES, with its types; nil without
	errs     map[string]error                    // of hooks whose object cannot be used
}

func (p *Package) readFacts() *facts {
	f := &facts{programs: map[string]map[string]bool{}, maps: map[string]map[string]*ebpf.MapSpec{},
		errs: map[string]error{}}
	for _, hook := range p.Hooks {
		spec, err := p.Spec(hook)
		if err != nil {
			f.errs[hook] = err
			continue
		}
		f.programs[hook], f.maps[hook] = map[string]bool{}, map[string]*ebpf.MapSpec{}
		for name := range spec.Programs {
			f.programs[hook][name] = true
		}
		for name, m := range spec.Maps {
			f.maps[hook][name] = sizeOnly(m)
		}
		if f.tunables == nil { // the object for one of the hooks may have none
			f.tunables = spec.Maps[sdk.TunablesMap]
		}
	}
	return f
}

func sizeOnly(m *ebpf.MapSpec) *ebpf.MapSpec {
	if m == nil {
		return nil
	}
	return &ebpf.MapSpec{Type: m.Type, KeySize: m.KeySize, ValueSize: m.ValueSize, MaxEntries: m.MaxEntries,
		Flags: m.Flags, InnerMap: sizeOnly(m.InnerMap)}
}

// HasEntry reports whether the data plane for a hook of the package has a program of this name. Errors are those of
// Spec.
func (p *Package) HasEntry(hook, program string) (bool, error) {
	f := p.facts()
	return f.programs[hook][program], f.errs[hook]
}

// Tunables is the map of KERB_TUNABLES, nil if the package has none. It must not be changed.
func (p *Package) Tunables() *ebpf.MapSpec { return p.facts().tunables }
