// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"embed"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/bench"
)

//go:embed *.bpf.*
var files embed.FS

// family is the IP version of the UDP packets, the suffix of program names: "4" or "6".
type family string

const (
	ipv4 family = "4"
	ipv6 family = "6"
)

// objects are the compiled data planes of the references.
type objects struct {
	module *ebpf.CollectionSpec
	bare   *ebpf.CollectionSpec
	of     family
}

func loadObjects(of family) (*objects, error) {
	module, err1 := bench.Object(files, "module.bpf.o")
	bare, err2 := bench.Object(files, "bare.bpf.o")
	return &objects{module, bare, of}, errors.Join(err1, err2)
}

// selectProgram returns a copy of a spec with one program and the maps that it uses.
func selectProgram(spec *ebpf.CollectionSpec, program string) *ebpf.CollectionSpec {
	one := spec.Copy()
	for name := range one.Programs {
		if name != program {
			delete(one.Programs, name)
		}
	}
	used := map[string]bool{}
	for i := range one.Programs[program].Instructions {
		used[one.Programs[program].Instructions[i].Reference()] = true
	}
	for name := range one.Maps {
		if !used[name] {
			delete(one.Maps, name)
		}
	}
	for name, v := range one.Variables {
		if !used[v.SectionName] {
			delete(one.Variables, name)
		}
	}
	return one
}

// module is a counting module as a separate program.
type module struct {
	program  *ebpf.Program
	counters *ebpf.Map
}

// loadModule loads a module that tail-calls slot next of slots, or ends the chain if next is 0.
func (o *objects) loadModule(hook string, next uint32, slots *ebpf.Map) (module, error) {
	name := "module_" + hook + string(o.of)
	spec := selectProgram(o.module, name)
	if err := spec.Variables["next"].Set(next); err != nil {
		return module{}, err
	}
	var opts ebpf.CollectionOptions
	if slots != nil {
		opts.MapReplacements = map[string]*ebpf.Map{"chain": slots}
	} else if chain := spec.Maps["chain"]; chain != nil {
		chain.MaxEntries = 1 // never used, but an instruction references it
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, opts)
	if err != nil {
		return module{}, fmt.Errorf("module: %w", err)
	}
	defer coll.Close()
	return module{coll.DetachProgram(name), coll.DetachMap("counters")}, nil
}

func (m module) Close() error {
	return errors.Join(m.program.Close(), m.counters.Close())
}

// packets returns the count over all CPUs.
func packets(counters *ebpf.Map) (uint64, error) {
	var perCPU []struct{ Packets, Bytes uint64 }
	if err := counters.Lookup(uint32(0), &perCPU); err != nil {
		return 0, err
	}
	var sum uint64
	for _, c := range perCPU {
		sum += c.Packets
	}
	return sum, nil
}

// modules are several modules in order.
type modules []module

func (ms modules) Packets() ([]uint64, error) {
	var all []uint64
	for _, m := range ms {
		n, err := packets(m.counters)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

func (ms modules) Close() error { return bench.CloseAll(ms) }
