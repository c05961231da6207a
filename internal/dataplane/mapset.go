// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// mapSet is the maps of a module with one config, by pin name.
type mapSet struct {
	Module
	maps map[string]*ebpf.Map
}

// Close closes the descriptors; pinned maps stay.
func (g *mapSet) Close() {
	for _, m := range g.maps {
		m.Close()
	}
}

// sdkMaps returns the maps as control planes and tests see them: by their names in the source, without data sections.
func (g *mapSet) sdkMaps() sdk.Maps {
	out := sdk.Maps{}
	for name, m := range g.maps {
		if !strings.Contains(name, "-") {
			out[name] = m
		}
	}
	return out
}

// hooksOf calls do with the object for each hook that the module can run on.
func hooksOf(mod Module, do func(chain.Hook, *ebpf.CollectionSpec) error) error {
	hooks := []chain.Hook{chain.TC, chain.XDP}
	if mod.Sockets {
		hooks = []chain.Hook{chain.Sockets}
	}
	for _, hook := range hooks {
		spec, err := mod.Spec(hook)
		if err != nil {
			return fmt.Errorf("module %s: %w", mod.Name, err)
		}
		if spec == nil {
			continue
		}
		if err := do(hook, spec); err != nil {
			return fmt.Errorf("module %s: %w", mod.Name, err)
		}
	}
	return nil
}

// newMapSet creates the maps of a module. It reuses maps of previous that are not config maps and have the same layout;
// Migrate determines what happens to the contents of others. Nothing is pinned yet and no packet uses the maps.
func newMapSet(mod Module, previous, shared map[string]*ebpf.Map) (*mapSet, error) {
	g := &mapSet{mod, map[string]*ebpf.Map{}}
	if err := g.create(previous, shared); err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// create creates and fills the maps of a map set. previous is the map set that it replaces, whose state it takes over;
// shared are the maps that all map sets of the module have in common.
func (g *mapSet) create(previous, shared map[string]*ebpf.Map) error {
	if fresh, err := g.newSockets(previous); err != nil {
		return err
	} else if fresh {
		previous = nil
	}
	if err := g.createMaps(previous, shared); err != nil {
		return err
	}
	fill := g.filler(previous)
	if g.maps[sdk.TunablesMap] != nil {
		fill = func() error { return g.firstValues(previous) }
	}
	if err := fill(); err != nil {
		return fmt.Errorf("module %s: %w", g.Name, err)
	}
	return nil
}

// createMaps creates the maps, but leaves those empty that the control plane fills.
func (g *mapSet) createMaps(previous, shared map[string]*ebpf.Map) error {
	mod := g.Module
	known := map[string]bool{}
	err := hooksOf(mod, func(hook chain.Hook, spec *ebpf.CollectionSpec) error {
		if err := applySettings(spec, mod, known); err != nil {
			return err
		}
		return g.addMaps(hook, spec, previous, shared)
	})
	if err != nil {
		return err
	}
	for name := range mod.Settings.Constants {
		if !known[name] {
			return fmt.Errorf("module %s: constant %s: %w", mod.Name, name, ErrNoConstant)
		}
	}
	if !g.Sockets {
		return g.addCounters(previous)
	}
	return nil
}

// applySettings sets constants and map sizes; known collects the names of the constants found.
func applySettings(spec *ebpf.CollectionSpec, mod Module, known map[string]bool) error {
	if err := setSKBConstants(spec); err != nil {
		return err
	}
	for name, value := range mod.Settings.Constants {
		v := spec.Variables[name]
		if v == nil {
			continue
		}
		known[name] = true
		if err := setConstant(v, value); err != nil {
			return fmt.Errorf("constant %s: %w", name, err)
		}
	}
	if v, given := spec.Variables[preemptible], mod.Settings.Constants[preemptible]; v != nil && given == nil {
		if err := setConstant(v, isPreemptible()); err != nil {
			return fmt.Errorf("constant %s: %w", preemptible, err)
		}
	}
	for name, size := range mod.Settings.MaxEntries {
		if m := spec.Maps[name]; m != nil {
			m.MaxEntries = size
		}
	}
	mod.fitSets(spec)
	for _, m := range spec.Maps {
		wholePages(m, uint32(os.Getpagesize()))
	}
	return nil
}

// preemptible is a constant of kerb/scratch.h: a packet may interrupt another one on the same CPU.
const preemptible = "kerb_preemptible"

// isPreemptible reports whether the kernel has PREEMPT_RT.
var isPreemptible = sync.OnceValue(func() bool {
	var u unix.Utsname
	return unix.Uname(&u) == nil && strings.Contains(unix.ByteSliceToString(u.Version[:]), "PREEMPT_RT")
})

// wholePages makes rings, including those inside other maps, at least one page large. A page may be larger than the
// size that the module was written for.
func wholePages(m *ebpf.MapSpec, page uint32) {
	for ; m != nil; m = m.InnerMap {
		if m.Type == ebpf.RingBuf || m.Type == ebpf.UserRingbuf {
			m.MaxEntries = max(m.MaxEntries, page)
		}
	}
}

// setConstant gives a variable a value.
func setConstant(v *ebpf.VariableSpec, value any) error {
	encoded, err := encodeInteger(value, uint64(v.Size()))
	if err != nil {
		return err
	}
	return v.Set(encoded)
}

// encodeInteger encodes an integer or boolean of any Go type (JSON numbers are float64) in a number of bytes.
func encodeInteger(value any, size uint64) ([]byte, error) {
	var n uint64
	switch x := value.(type) {
	case bool:
		if x {
			n = 1
		}
	case float64:
		if x != float64(int64(x)) {
			return nil, fmt.Errorf("%v is no integer", x)
		}
		n = uint64(int64(x))
	case int:
		n = uint64(x)
	case int64:
		n = uint64(x)
	case uint64:
		n = x
	case uint32:
		n = uint64(x)
	default:
		exact, err := binary.Append(nil, binary.NativeEndian, value)
		if err != nil || uint64(len(exact)) != size {
			return nil, fmt.Errorf("%v (%T) does not fit %d bytes", value, value, size)
		}
		return exact, nil
	}
	if size > 8 {
		return nil, fmt.Errorf("takes %d bytes: set it by the control plane", size)
	}
	if !fits(n, int(size)) {
		return nil, fmt.Errorf("%v does not fit %d bytes", value, size)
	}
	return binary.NativeEndian.AppendUint64(nil, n)[:size], nil
}

// fits reports whether n, read as signed or unsigned, fits size bytes.
func fits(n uint64, size int) bool {
	if size >= 8 {
		return true
	}
	bits := uint(8 * size)
	signed := int64(n)
	return n < 1<<bits || signed < 0 && signed >= -(1<<(bits-1))
}

// addMaps creates the maps of the object for one hook. An existing map with the same layout is reused, so that state
// survives without being copied. For one with another size a new map is created, and the entries are copied after all
// maps exist. Config maps are always new.
func (g *mapSet) addMaps(hook chain.Hook, spec *ebpf.CollectionSpec, previous, shared map[string]*ebpf.Map) error {
	replace := map[string]*ebpf.Map{}
	reuse := func(name string, ms *ebpf.MapSpec, m *ebpf.Map) {
		replace[name] = m
		if !strings.HasPrefix(name, ".") { // otherwise the loader rejects a map only because it cannot be mmapped
			ms.Flags = m.Flags()
		}
	}
	var copies []mapCopy
	for name, ms := range spec.Maps {
		pin := mapPin(hook, name)
		if got := g.maps[pin]; got != nil { // created for the other hook
			reuse(name, ms, got)
			continue
		}
		from := previous[pin]
		if g.shares(name) {
			from = shared[pin]
		} else if slices.Contains(sdk.SetMaps, name) {
			continue
		}
		if from == nil || !g.carried(name) {
			continue
		}
		same, copied, err := g.takeOver(name, ms, from)
		if err != nil {
			return err
		}
		if same {
			reuse(name, ms, from)
		}
		if copied {
			copies = append(copies, mapCopy{name, from})
		}
	}
	specs, filling := takeNested(spec.Maps)
	coll, err := ebpf.NewCollectionWithOptions(&ebpf.CollectionSpec{Maps: specs, Variables: spec.Variables,
		ByteOrder: spec.ByteOrder},
		ebpf.CollectionOptions{MapReplacements: replace})
	if err != nil {
		return fmt.Errorf("create maps: %w", err)
	}
	defer coll.Close()
	for name, entries := range filling {
		if err := entries.put(coll.Maps[name], coll.Maps); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for name := range spec.Maps {
		if pin := mapPin(hook, name); g.maps[pin] == nil {
			g.maps[pin] = coll.DetachMap(name)
		}
	}
	for _, c := range copies {
		if err := copyEntries(c.name, c.from, g.maps[mapPin(hook, c.name)]); err != nil {
			return err
		}
	}
	return nil
}

// carried reports whether a map outlives its map set.
func (g *mapSet) carried(name string) bool {
	return name != sdk.TunablesMap && !slices.Contains(g.ConfigMaps, name) && !strings.HasPrefix(name, ".rodata") &&
		!strings.HasPrefix(name, ".kconfig")
}

// layoutDiff describes how a kernel map differs from the one that a new map set declares.
type layoutDiff int

const (
	sameLayout layoutDiff = iota
	otherSize
	otherLayout
)

// compareLayout reports whether a running map fits a new map set.
func compareLayout(spec *ebpf.MapSpec, m *ebpf.Map) layoutDiff {
	const kernelSet = 1 << 10 // BPF_F_MMAPABLE, which the loader adds to data sections
	if spec.Type != m.Type() || spec.KeySize != m.KeySize() && spec.Type != ebpf.RingBuf ||
		spec.ValueSize != m.ValueSize() && spec.Type != ebpf.RingBuf {
		return otherLayout
	}
	if spec.Flags|kernelSet != m.Flags()|kernelSet {
		return otherLayout
	}
	if spec.MaxEntries != m.MaxEntries() {
		return otherSize
	}
	return sameLayout
}

// pin pins the whole map set under dir atomically.
func (g *mapSet) pin(l layout) error {
	dir := l.mapSet(g.Name, g.ID)
	for name := range g.maps {
		if !g.shares(name) {
			continue
		}
		if err := pinOnce(g.maps[name], filepath.Join(l.shared(), name)); err != nil {
			return err
		}
	}
	return pinDir(dir, func(tmp string) error {
		for name, m := range g.maps {
			if err := pinCopy(m, filepath.Join(tmp, name)); err != nil {
				return fmt.Errorf("pin map %s: %w", name, err)
			}
		}
		return nil
	})
}

// openMapSet opens a pinned map set.
func openMapSet(l layout, mod Module) (*mapSet, error) {
	maps, err := openMaps(l.mapSet(mod.Name, mod.ID))
	if err != nil {
		return nil, err
	}
	return &mapSet{Module: mod, maps: maps}, nil
}

// openMaps opens all pinned maps of a directory; a missing directory is os.ErrNotExist.
func openMaps(dir string) (map[string]*ebpf.Map, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	maps := map[string]*ebpf.Map{}
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		m, err := pinnedMap(filepath.Join(dir, e.Name()))
		if err != nil {
			closeAll(maps)
			return nil, fmt.Errorf("open pinned map %s: %w", e.Name(), err)
		}
		maps[e.Name()] = m
	}
	return maps, nil
}

func closeAll(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		m.Close()
	}
}
