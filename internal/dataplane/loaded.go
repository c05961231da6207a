// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// Loaded is a chain in the kernel that is neither pinned nor attached, for test runs and checks.
type Loaded struct {
	Program   *ebpf.Program
	Parts     int                 // programs that the chain is split into
	Maps      map[string]sdk.Maps // by module
	Outcomes  *ebpf.Map           // packets by parse outcome, per CPU
	chain     *linkedChain
	measures  measurements // nothing: no timed copy
	uncounted bool
	mapSets   []*mapSet
	relinked  []*linkedChain
}

// Load creates the maps of the modules, fills them, and links the modules in the given order.
func Load(side chain.Side, dir chain.Direction, modules ...Module) (*Loaded, error) {
	return loadModules(side, dir, false, modules)
}

// LoadUncounted is Load for a chain that does not count packets, to measure the cost of counting.
func LoadUncounted(side chain.Side, dir chain.Direction, modules ...Module) (*Loaded, error) {
	return loadModules(side, dir, true, modules)
}

// loadModules creates maps and one chain of all modules in the given order, without attaching or pinning. uncounted
// leaves out the counters of verdicts.
func loadModules(side chain.Side, dir chain.Direction, uncounted bool, modules []Module) (*Loaded, error) {
	out := &Loaded{Maps: map[string]sdk.Maps{}, uncounted: uncounted}
	spec := chain.Spec{Side: side, Direction: dir}
	for _, mod := range modules {
		g, err := newMapSet(mod, nil, nil)
		if err != nil {
			out.Close()
			return nil, err
		}
		out.mapSets = append(out.mapSets, g)
		out.Maps[mod.Name] = g.sdkMaps()
		spec.Members = append(spec.Members, chain.Member{Name: mod.Name, ID: mod.ID, FailClosed: mod.FailClosed})
	}
	c, err := out.link(spec)
	if err != nil {
		out.Close()
		return nil, err
	}
	out.chain, out.Program, out.Parts, out.Outcomes = c, c.entry(), len(c.progs), c.outcomes
	return out, nil
}

// Relink links the same map sets again, for example in another order or for another side.
func (l *Loaded) Relink(spec chain.Spec) (*ebpf.Program, error) {
	c, err := l.link(spec)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.entry().Clone()
}

// link links another chain of loaded modules, which share their maps.
func (l *Loaded) link(spec chain.Spec) (*linkedChain, error) {
	linker, err := l.linker(spec)
	if err != nil {
		return nil, err
	}
	return linker.plainChain()
}

func (l *Loaded) linker(spec chain.Spec) (*linker, error) {
	members, err := l.members(spec)
	if err != nil {
		return nil, err
	}
	linker, err := newLinker(spec, members)
	if err != nil {
		return nil, err
	}
	linker.uncounted = l.uncounted
	return linker, nil
}

// RelinkWithCode is Relink for tests that interpret the code: it also returns the code passed to the kernel, before the
// loader's relocations, and keeps the chain's own maps open with l.
func (l *Loaded) RelinkWithCode(spec chain.Spec) (*ebpf.Program, asm.Instructions, error) {
	linker, err := l.linker(spec)
	if err != nil {
		return nil, nil, err
	}
	c, code, err := linker.withCode()
	if err != nil {
		return nil, nil, err
	}
	l.relinked = append(l.relinked, c)
	return c.entry(), code, nil
}

// VerifierLog loads the chain again, and returns the verifier's log of all instructions: tens of megabytes for a large
// module.
func (l *Loaded) VerifierLog() (string, error) {
	linker, err := l.linker(l.chain.spec)
	if err != nil {
		return "", err
	}
	c, code, err := linker.withCode()
	if err != nil {
		return "", err
	}
	defer c.Close()
	prog, err := ebpf.NewProgramWithOptions(linker.programSpec(code, programName(l.chain.spec)),
		ebpf.ProgramOptions{LogLevel: ebpf.LogLevelInstruction, LogSizeStart: 32 << 20})
	if err != nil {
		return "", err
	}
	defer prog.Close()
	return prog.VerifierLog, nil
}

// withCode also returns the chain's code. The caller closes the chain.
func (l *linker) withCode() (*linkedChain, asm.Instructions, error) {
	c, err := l.chain()
	if err != nil {
		return nil, nil, err
	}
	if len(c.progs) != 1 {
		c.Close()
		return nil, nil, fmt.Errorf("the chain has %d programs instead of one", len(c.progs))
	}
	code, err := l.link(0, len(l.members), nil, 0)
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c, code, nil
}

// Counts returns the verdict counts of each module in chain order.
func (l *Loaded) Counts() ([]Verdicts, error) {
	return readCounts(l.chain.counts, len(l.chain.spec.Members))
}

// Time adds the timed copy, as the agent does for a chain. It keeps packets that take longer than slower.
func (l *Loaded) Time(slower time.Duration) (err error) {
	if l.chain.samples == nil {
		return nil
	}
	l.measures, err = linkTimed(l.chain, l.mapSets, l.Parts, slower, l.measures, func(measurements) error { return nil })
	return err
}

// Stats returns the verdict counts and the latency of each module in chain order.
func (l *Loaded) Stats() (ChainStats, error) {
	return readStats(l.chain.counts, l.measures.latency, len(l.chain.spec.Members))
}

// Trace is Relink for a chain that reports each module's verdict to t, which must outlive the program.
func (l *Loaded) Trace(t *Trace, spec chain.Spec) (*ebpf.Program, error) {
	members, err := l.members(spec)
	if err != nil {
		return nil, err
	}
	c, err := t.link(spec, members, 1, nil)
	if err != nil {
		return nil, err
	}
	return c.entry().Clone()
}

// members returns the map sets of the chain's members in chain order. A member without a loaded map set is an error.
func (l *Loaded) members(spec chain.Spec) ([]*mapSet, error) {
	members := make([]*mapSet, len(spec.Members))
	for i, m := range spec.Members {
		for _, g := range l.mapSets {
			if g.Name == m.Name {
				members[i] = g
			}
		}
		if members[i] == nil {
			return nil, fmt.Errorf("module %s is not loaded", m.Name)
		}
	}
	return members, nil
}

// SetValues changes the values of a module of the chain without a new program: see Bound.SetValues.
func (l *Loaded) SetValues(mod Module) error {
	for _, g := range l.mapSets {
		if g.Name == mod.Name {
			g.Module = mod
			return g.setValues(mod.Values, awaitPackets)
		}
	}
	return fmt.Errorf("module %s is not loaded", mod.Name)
}

// Drops returns the packets that a module dropped, by reason, summed over the CPUs.
func (l *Loaded) Drops(module string) ([]uint64, error) {
	return Drops(l.Maps[module])
}

// Close frees everything.
func (l *Loaded) Close() {
	if l.chain != nil {
		l.chain.Close()
	}
	l.measures.Close()
	for _, c := range l.relinked {
		c.Close()
	}
	for _, g := range l.mapSets {
		g.Close()
	}
}

// sumPerCPU reads a per-CPU array of 64-bit counters.
func sumPerCPU(m *ebpf.Map) ([]uint64, error) {
	if m == nil {
		return nil, fmt.Errorf("counters: %w", sdk.ErrNoMap)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	out := make([]uint64, m.MaxEntries())
	keys, values := make([]uint32, len(out)), make([]uint64, len(out)*cpus)
	n, err := m.BatchLookup(new(ebpf.MapBatchCursor), keys, values, nil)
	if errors.Is(err, ebpf.ErrNotSupported) { // before Linux 5.13
		return sumEach(m, out)
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) { // these were the last
		return nil, err
	}
	for i, key := range keys[:n] {
		for _, one := range values[i*cpus : (i+1)*cpus] {
			out[key] += one
		}
	}
	return out, nil
}

// sumEach is sumPerCPU with a system call for each element.
func sumEach(m *ebpf.Map, out []uint64) ([]uint64, error) {
	var perCPU []uint64
	for i := range out {
		if err := m.Lookup(uint32(i), &perCPU); err != nil {
			return nil, err
		}
		for _, one := range perCPU {
			out[i] += one
		}
	}
	return out, nil
}
