// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk"
)

// facts caches the properties of data planes that every change reads. A parsed data plane takes megabytes and is not
// kept for long (see keepParsed).
type facts struct {
	programs map[string]map[string]bool          // names, by hook
	maps     map[string]map[string]*ebpf.MapSpec // by hook and name, only with the fields that determine the size
	tunables *ebpf.MapSpec                       // of KERB_TUNABLES, with its types; nil if there is none
	errs     map[string]error                    // of unusable objects, by hook
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

// HasEntry reports whether the data plane for a hook has a program of this name. It fails like Spec.
func (p *Package) HasEntry(hook, program string) (bool, error) {
	f := p.facts()
	return f.programs[hook][program], f.errs[hook]
}

// Tunables returns the map of KERB_TUNABLES, or nil. Callers must not change it.
func (p *Package) Tunables() *ebpf.MapSpec { return p.facts().tunables }
