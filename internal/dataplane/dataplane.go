// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// Options of a data plane.
type Options struct {
	Root string // directory on a BPF file system, for example /sys/fs/bpf/kerb
	Run  string // directory for notes that need not survive a reboot; may be empty
	Last bool   // run after foreign programs on the same hook, not before them
	// NoTCX selects clsact even if the kernel has TCX.
	NoTCX bool
	// NoGuard attaches no program to LSM hooks: modules on sockets that are attached from now on run without their guard.
	NoGuard    bool
	NoExpedite bool // no expedited RCU grace periods, even if they are permitted
}

// Dataplane is Kerb's part of the kernel. Its methods are not safe for concurrent use unless they say so, with two
// exceptions: different chains may be created concurrently, and Attach and Detach may be called concurrently for
// different hooks of interfaces. Hooks of sockets are changed sequentially: those of all cgroups share the guard, the
// switch of their module, and the state of draining modules.
type Dataplane struct {
	opts     Options
	layout   layout
	tcx      bool
	draining map[string]time.Time // draining chains on sockets by directory, with the time when draining began
	links    knownLinks
	counts   countReader
	tracer   *tracer // of the sessions of traces that run
	grace    *grace  // since the last change of values; nil: a killed agent may have changed values just before
	meter    meter

	mayExpedite atomic.Bool
	expediting  expediting
	background  sync.WaitGroup // waits for packets
}

// Close returns when no background work is left that would leave rcu_expedited set.
func (d *Dataplane) Close() {
	d.background.Wait()
	d.links.Close()
	d.meter.Close()
}

// Open prepares the directory of pins, and removes what a killed agent had built partly.
func Open(opts Options) (*Dataplane, error) {
	d := &Dataplane{opts: opts, layout: layout{opts.Root}, draining: map[string]time.Time{}}
	if err := checkBPFFS(opts.Root); err != nil {
		return nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil { // only before Linux 5.11
		return nil, fmt.Errorf("raise RLIMIT_MEMLOCK: %w", err)
	}
	d.tcx = !opts.NoTCX && haveTCX()
	if err := os.MkdirAll(opts.Root, 0o700); err != nil {
		return nil, err
	}
	if err := checkOwner(opts.Root); err != nil {
		return nil, err
	}
	dirs := []string{opts.Root, d.layout.chains()}
	modules, _ := filepath.Glob(filepath.Join(d.layout.modules(), "*"))
	if err := sweepTemp(append(dirs, modules...)...); err != nil {
		return nil, err
	}
	if err := d.unexpedite(); err != nil {
		return nil, err
	}
	d.links.removed, _ = openRemovals() // otherwise links are read each time
	return d, nil
}

// checkOwner rejects a directory in which other users could replace pins, and with them chains: in a bpffs mounted
// without a mode, any user may have created it.
func checkOwner(root string) error {
	var st unix.Stat_t
	if err := unix.Lstat(root, &st); err != nil {
		return fmt.Errorf("%s: %w", root, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() && st.Uid != 0 || st.Mode&0o022 != 0 {
		return fmt.Errorf("%s is writable by other users (user %d, mode %04o), who could remove chains: remove it, for "+
			"example with rmdir %s", root, st.Uid, st.Mode&0o7777, root)
	}
	return nil
}

// checkBPFFS checks the nearest existing directory.
func checkBPFFS(root string) error {
	const magic = 0xcafe4a11 // BPF_FS_MAGIC
	for dir := root; ; dir = filepath.Dir(dir) {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if errors.Is(err, unix.ENOENT) && dir != "/" {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		if uint32(st.Type) != magic {
			return fmt.Errorf("%w at %s: mount one with: mount -t bpf -o mode=700 bpf /sys/fs/bpf", ErrNotMounted, root)
		}
		return nil
	}
}

// Observe reads the state of the kernel.
func (d *Dataplane) Observe() (chain.State, error) {
	s := chain.State{MapSets: map[string][]string{}}
	modules, _ := os.ReadDir(d.layout.modules())
	for _, m := range modules {
		mapSets, _ := os.ReadDir(d.layout.module(m.Name()))
		for _, g := range mapSets {
			s.MapSets[m.Name()] = append(s.MapSets[m.Name()], g.Name())
		}
	}
	var err error
	if s.Values, err = d.readValues(s.MapSets); err != nil {
		return s, err
	}
	if s.Chains, err = readChains(d.layout); err != nil {
		return s, err
	}
	s.Points, err = d.readLinks()
	return s, err
}

// HasMapSet reports whether the maps of a map set are pinned.
func (d *Dataplane) HasMapSet(name, id string) bool {
	_, err := os.Stat(d.layout.mapSet(name, id))
	return err == nil
}

// RemoveMapSet removes the maps of a map set that no other map set uses.
func (d *Dataplane) RemoveMapSet(name, id string) error {
	if err := removePins(d.layout.mapSet(name, id)); err != nil {
		return err
	}
	_ = os.Remove(d.layout.module(name)) // only if it is empty now
	return nil
}

// HasChain reports whether a chain is linked and pinned.
func (d *Dataplane) HasChain(spec chain.Spec) bool {
	_, err := os.Stat(entryPin(d.layout.chain(spec)))
	return err == nil
}

// CreateChain links, verifies and pins a chain of existing map sets. An existing chain stays unchanged.
func (d *Dataplane) CreateChain(spec chain.Spec, modules map[string]Module) error {
	if d.HasChain(spec) {
		return nil
	}
	if err := removePins(d.layout.chain(spec)); err != nil { // without an entry it is unusable
		return err
	}
	members, err := d.openMembers(spec, modules)
	defer closeMembers(members)
	if err != nil {
		return err
	}
	return d.on(spec.Side).create(spec, members)
}

// openMembers opens the map sets of a chain. The caller closes the returned ones, also after an error.
func (d *Dataplane) openMembers(spec chain.Spec, modules map[string]Module) ([]*mapSet, error) {
	var members []*mapSet
	for _, m := range spec.Members {
		g, err := d.openComplete(modules[m.Name])
		if g != nil {
			members = append(members, g)
		}
		if err != nil {
			return members, fmt.Errorf("module %s: %w", m.Name, err)
		}
	}
	return members, nil
}

// openComplete opens a map set and adds missing maps. Calls are serialized, because chains are created concurrently.
func (d *Dataplane) openComplete(mod Module) (*mapSet, error) {
	d.counts.mu.Lock()
	defer d.counts.mu.Unlock()
	g, err := openMapSet(d.layout, mod)
	if err != nil {
		return nil, err
	}
	return g, g.completeCounters(d.layout)
}

func closeMembers(members []*mapSet) {
	for _, g := range members {
		g.Close()
	}
}

// RemoveChain removes a chain that is no longer attached. Programs on sockets first release their sockets. While some
// sockets hold bytes, the error is a *chain.DrainingError, and the caller calls RemoveChain again shortly afterwards.
func (d *Dataplane) RemoveChain(c chain.Pinned) error {
	if err := d.on(c.Spec.Side).release(c); err != nil {
		return err
	}
	return d.removeCounted(d.layout.pinned(c))
}

// RemoveChainSpec is RemoveChain for a chain that is known by its spec.
func (d *Dataplane) RemoveChainSpec(spec chain.Spec) error {
	return d.removeCounted(d.layout.chain(spec))
}

// Attach attaches a chain to a point and replaces the one that runs there.
func (d *Dataplane) Attach(p chain.Point, spec chain.Spec) error {
	return d.AttachPinned(p, chain.Pinned{ID: spec.ID(), Spec: spec})
}

// AttachPinned is Attach for a chain that is known only by its pins, as needed to undo a step.
func (d *Dataplane) AttachPinned(p chain.Point, c chain.Pinned) error {
	return d.on(p.Side).put(p, d.layout.pinned(c))
}

// Maps opens the maps of a map set, for its control plane. The caller closes them.
func (d *Dataplane) Maps(name, id string) (sdk.Maps, error) {
	g, err := d.openComplete(Module{Name: name, ID: id})
	if err != nil {
		if g != nil {
			g.Close()
		}
		return nil, err
	}
	out := g.sdkMaps()
	for pin, m := range g.maps {
		if out[pin] == nil {
			m.Close()
		}
	}
	return out, nil
}

// Holds reports whether maps belong to a pinned map set. If pins were lost, a new map set with new maps is created in
// its place.
func (d *Dataplane) Holds(name, id string, open sdk.Maps) bool {
	if len(open) == 0 {
		return true
	}
	one := slices.Min(slices.Collect(maps.Keys(open)))
	if open[sdk.TunablesMap] != nil {
		one = sdk.TunablesMap // always new, never carried over
	}
	pinned, err1 := pinnedID(filepath.Join(d.layout.mapSet(name, id), one))
	held, err2 := objectID(open[one].FD())
	return err1 == nil && err2 == nil && pinned == held
}

// Outcomes returns the numbers of packets that could not be parsed, by outcome, summed over the CPUs.
func (d *Dataplane) Outcomes(c chain.Pinned) ([]uint64, error) {
	m, err := pinnedMap(filepath.Join(d.layout.pinned(c), outcomesPin))
	if err != nil {
		return nil, err
	}
	defer m.Close()
	return sumPerCPU(m)
}

// Memory returns the memory of a map set's maps in bytes, as the kernel accounts for it. A map shared by several map
// sets is counted in each.
func Memory(maps sdk.Maps) int64 {
	var total int64
	for _, m := range maps {
		if info, err := m.Info(); err == nil {
			if n, ok := info.Memlock(); ok {
				total += int64(n)
			}
		}
	}
	return total
}

// Purge removes everything that Kerb has in the kernel below this root: it detaches chains and removes programs and
// maps.
func (d *Dataplane) Purge() error {
	points, err := d.readLinks()
	errs := []error{err}
	for _, a := range points {
		errs = append(errs, d.Detach(a.Point))
	}
	// Filters stay when the tcx option or the kernel changes.
	filters, err := d.readClsact()
	errs = append(errs, err)
	for _, a := range filters {
		errs = append(errs, d.detachClsact(a.Point))
	}
	errs = append(errs, d.drainAll())
	for _, dir := range []string{d.layout.chains(), d.layout.modules()} { // neither is ever incomplete
		errs = append(errs, removePins(dir))
	}
	errs = append(errs, d.forgetExpedited(), removeAll(d.layout.root))
	return errors.Join(errs...)
}
