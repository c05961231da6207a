// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
)

// linkedChain is a linked chain in the kernel. The entry is progs[0]. There are further programs only if the verifier
// could not check the chain as one program.
type linkedChain struct {
	spec     chain.Spec
	progs    []*ebpf.Program
	parts    *ebpf.Map // tail-call table; nil for a single program
	outcomes *ebpf.Map
	counts   *ebpf.Map
	samples  *ebpf.Map // table for the timed copy; nil: not supported by the kernel
	drops    []*ebpf.Map
	modules  []string // names and packages in chain order, for display
}

func (c *linkedChain) entry() *ebpf.Program { return c.progs[0] }

func (c *linkedChain) Close() {
	for _, p := range c.progs {
		p.Close()
	}
	for _, m := range append([]*ebpf.Map{c.parts, c.outcomes, c.counts, c.samples}, c.drops...) {
		if m != nil {
			m.Close()
		}
	}
}

// loadChain links and loads a chain, but does not pin or attach it.
func loadChain(spec chain.Spec, members []*mapSet) (*linkedChain, error) {
	l, err := newLinker(spec, members)
	if err != nil {
		return nil, err
	}
	return l.plainChain()
}

// plainChain links a chain that neither traces nor measures. Functions take more of the kernel's stack than inlined
// code: if the verifier rejects them for it, the chain is linked without.
func (l *linker) plainChain() (*linkedChain, error) {
	l.functions = l.spec.Functions
	c, err := l.chain()
	var refused *ebpf.VerifierError
	if l.functions && errors.As(err, &refused) {
		l.functions = false
		return l.chain()
	}
	return c, err
}

func (l *linker) chain() (*linkedChain, error) {
	c := &linkedChain{spec: l.spec}
	err := c.create(l)
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// create adds the chain's own maps, shares the drop counters of its members, and loads the program. The caller closes
// the chain, also after an error.
func (c *linkedChain) create(l *linker) (err error) {
	if err := c.addCounters(l); err != nil {
		return err
	}
	if err := c.addSamples(l); err != nil {
		return err
	}
	for _, g := range l.members {
		m, err := g.maps[dropsMap].Clone()
		if err != nil {
			return err
		}
		c.drops = append(c.drops, m)
		c.modules = append(c.modules, describe(g.Module))
	}
	return c.load(l)
}

const (
	outcomesMap = "kerb_outcomes"
	outcomesPin = "outcomes"
)

// addCounters gives a chain counters: new ones, or those of the chain that it replaces temporarily.
func (c *linkedChain) addCounters(l *linker) (err error) {
	if l.plain != nil {
		c.outcomes, err = l.plain.outcomes.Clone()
	} else {
		c.outcomes, err = ebpf.NewMap(l.object.Maps[outcomesMap])
	}
	if err != nil {
		return fmt.Errorf("create parse counters: %w", err)
	}
	if l.plain != nil {
		c.counts, err = l.plain.counts.Clone()
	} else {
		c.counts, err = l.newCounts()
	}
	if err != nil {
		return fmt.Errorf("create counts: %w", err)
	}
	l.maps[outcomesMap], l.maps[countsMap] = c.outcomes, c.counts
	return nil
}

// openPlain opens the counters and the table of a pinned chain for its copies, and returns the number of its parts.
func openPlain(spec chain.Spec, dir string) (c *linkedChain, parts int, err error) {
	c = &linkedChain{spec: spec}
	for name, m := range map[string]**ebpf.Map{outcomesPin: &c.outcomes, countsPin: &c.counts, samplesPin: &c.samples} {
		*m, err = pinnedMap(filepath.Join(dir, name))
		if err != nil && (name != samplesPin || !errors.Is(err, os.ErrNotExist)) {
			c.Close()
			return nil, 0, fmt.Errorf("chain %s: %w", spec.ID(), err)
		}
	}
	progs, err := filepath.Glob(filepath.Join(dir, "prog*"))
	return c, len(progs), err
}

// load loads the chain as one program, or in the number of parts that it is known to need, and in more parts whenever
// the verifier gives up.
func (c *linkedChain) load(l *linker) error {
	n := len(l.members)
	for count := max(l.parts, 1); ; count *= 2 {
		err := c.loadParts(l, min(count, max(n, 1)))
		if err == nil || !errors.Is(err, errTooComplex) || count >= n {
			return err
		}
	}
}

// loadParts loads the chain as count programs, the last one first, because each needs the table with its successor.
func (c *linkedChain) loadParts(l *linker, count int) (err error) {
	c.progs, c.parts = make([]*ebpf.Program, count), nil
	if l.timed {
		c.parts, err = l.samples.Clone()
	} else if count > 1 {
		c.parts, err = ebpf.NewMap(&ebpf.MapSpec{Name: "kerb_parts", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4,
			MaxEntries: uint32(count)})
	}
	if err != nil {
		return fmt.Errorf("create tail-call table: %w", err)
	}
	n := len(l.members)
	for i := count - 1; i >= 0; i-- {
		first, last := n*i/count, n*(i+1)/count
		table := c.parts
		if i == count-1 {
			table = nil
		}
		prog, err := c.loadPart(l, first, last, table, i+1)
		if err != nil {
			c.dropParts()
			return err
		}
		c.progs[i] = prog
		if i > 0 || l.timed {
			if err := c.parts.Put(uint32(i), prog); err != nil {
				return fmt.Errorf("fill tail-call table: %w", err)
			}
		}
	}
	return nil
}

// dropParts frees the programs of a chain that will be linked again in more parts. Counters and samples stay.
func (c *linkedChain) dropParts() {
	for _, p := range c.progs {
		if p != nil {
			p.Close()
		}
	}
	c.progs = nil
	if c.parts != nil {
		c.parts.Close()
		c.parts = nil
	}
}

// loadPart links and loads the members from first up to last as one program; table and slot identify the tail call to
// the next part. The program is first loaded without the verifier's log, and after a failure again with it for the
// error message: producing the log of a large chain takes longer than the verification. errTooComplex asks the caller
// to use more parts.
func (c *linkedChain) loadPart(l *linker, first, last int, table *ebpf.Map, slot int) (*ebpf.Program, error) {
	code, err := l.link(first, last, table, slot)
	if err != nil {
		return nil, err
	}
	spec := l.programSpec(code, programName(c.spec))
	var prog *ebpf.Program
	load := func() { prog, err = ebpf.NewProgramWithOptions(spec, ebpf.ProgramOptions{LogDisabled: true}) }
	if l.background {
		inBackground(load)
	} else {
		load()
	}
	if errors.Is(err, unix.E2BIG) && last-first > 1 { // the log of a million instructions takes seconds
		return nil, fmt.Errorf("%w: %w", errTooComplex, err)
	}
	if err != nil {
		prog, err = ebpf.NewProgramWithOptions(spec, ebpf.ProgramOptions{LogLevel: logLevel(err)})
	}
	if err == nil {
		return prog, nil
	}
	if tooComplex(err) && len(l.members) > 1 {
		return nil, fmt.Errorf("%w: %w", errTooComplex, rejected(err, c.names()))
	}
	return nil, rejected(err, c.names())
}

// logLevel requests only the final message if the verifier has followed too many paths: a log of all steps would have
// up to gigabytes, and one of a million steps takes seconds.
func logLevel(err error) ebpf.LogLevel {
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.EFAULT) {
		return ebpf.LogLevelStats
	}
	return ebpf.LogLevelBranch
}

func (c *linkedChain) names() []string {
	var names []string
	for _, m := range c.spec.Members {
		names = append(names, m.Name)
	}
	return names
}

// tooComplex reports whether the error is one of the verifier's limits, the only reason to split a chain.
func tooComplex(err error) bool {
	var verifier *ebpf.VerifierError
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.EFAULT) {
		return true
	}
	if !errors.As(err, &verifier) {
		return false
	}
	log := strings.Join(verifier.Log, "\n")
	return strings.Contains(log, "BPF program is too large") || strings.Contains(log, "jumps is too complex") ||
		strings.Contains(log, "stack size of")
}

// pin pins the whole chain atomically.
func (c *linkedChain) pin(l layout) error {
	return pinDir(l.chain(c.spec), func(tmp string) error {
		for i, p := range c.progs {
			if err := p.Pin(filepath.Join(tmp, fmt.Sprintf("prog%d", i))); err != nil {
				return fmt.Errorf("pin program: %w", err)
			}
			c.label(p)
		}
		pins := map[string]*ebpf.Map{outcomesPin: c.outcomes, countsPin: c.counts}
		if c.parts != nil {
			pins["parts"] = c.parts
		}
		if c.samples != nil {
			pins[samplesPin] = c.samples
		}
		for i, m := range c.spec.Members {
			pins[memberPin(i, m)] = c.drops[i]
		}
		for name, m := range pins {
			if err := pinCopy(m, filepath.Join(tmp, name)); err != nil {
				return fmt.Errorf("pin %s: %w", name, err)
			}
		}
		return nil
	})
}

// readChains lists the pinned chains.
func readChains(l layout) ([]chain.Pinned, error) {
	entries, err := os.ReadDir(l.chains())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []chain.Pinned
	for _, e := range entries {
		spec, id, ok := parseChainPin(e.Name())
		if !ok {
			continue
		}
		dir := filepath.Join(l.chains(), e.Name())
		c := chain.Pinned{ID: id, Spec: spec}
		if err := readPins(&c, dir); errors.Is(err, os.ErrNotExist) {
			continue // unpinned by hand
		} else if err != nil {
			return nil, fmt.Errorf("chain %s: %w", e.Name(), err)
		}
		out = append(out, c)
	}
	return out, nil
}

// readPins reads the members and programs of a chain from its pins.
func readPins(c *chain.Pinned, dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files { // sorted by name
		if m, ok := parseMemberPin(f.Name()); ok {
			c.Spec.Members = append(c.Spec.Members, m)
		}
		if strings.HasPrefix(f.Name(), "prog") {
			c.Parts++
		}
	}
	if c.Program, err = pinnedID(entryPin(dir)); err != nil || c.Spec.Side != chain.OnSockets {
		return err
	}
	c.Parts, c.Entries = 1, map[chain.Entry]uint32{}
	for _, e := range []chain.Entry{chain.All, chain.Services} {
		id, err := pinnedID(filepath.Join(dir, string(e)))
		if err == nil {
			c.Entries[e] = id
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// programName returns the name by which Kerb's programs are recognized.
func programName(c chain.Spec) string { return "kerb_" + c.ID() }
