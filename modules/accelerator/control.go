// SPDX-License-Identifier: Apache-2.0

// Package accelerator is the control plane of the accelerator: it writes to the data plane which services, ports and
// programs take part, and reports the state of their connections.
package accelerator

import (
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk"
)

// Control returns the control plane.
func Control() sdk.Control {
	memories := &memories{of: map[string]*memory{}}
	return sdk.Define(func(raw json.RawMessage) (*compiled, error) {
		c, err := parseConfig(raw)
		return &compiled{c, memories}, err
	})
}

type compiled struct {
	*config
	memories *memories
}

// accelerator is a config whose maps see packets.
type accelerator struct {
	*config
	live    sdk.Live
	memory  *memory
	changed chan struct{}         // receives when the instances have changed
	problem atomic.Pointer[error] // why the data plane does not have this config; nil if it has
	full    atomic.Uint64         // connections without an entry because the table was full, before this config
}

var (
	_ sdk.Compiled          = (*compiled)(nil)
	_ sdk.Runner            = (*accelerator)(nil)
	_ sdk.AttachmentWatcher = (*accelerator)(nil)
	_ sdk.HealthChecker     = (*accelerator)(nil)
	_ sdk.NoteNamer         = (*accelerator)(nil)
)

// Settings implements sdk.Compiled.
func (*compiled) Settings() sdk.Settings { return sdk.Settings{} }

// Fill implements sdk.Compiled. All maps are state, because a connection keeps the program that it began with, and that
// program's maps. Run writes them when this config has become the current one.
func (*compiled) Fill(sdk.Maps) error { return nil }

// Open implements sdk.Compiled.
func (c *compiled) Open(live sdk.Live) (sdk.Running, error) {
	memory := c.memories.get(live.Module)
	return &accelerator{config: c.config, live: live, memory: memory, changed: make(chan struct{}, 1)}, nil
}

// saveEvery is how often the known programs are saved, if they have changed.
const saveEvery = 2 * time.Second

// Run implements sdk.Runner: it writes the config to the data plane, and decides on the programs that the data plane
// reports.
func (a *accelerator) Run(ctx context.Context) {
	if err := a.apply(); err != nil {
		slog.Error("accelerator: the data plane does not have its config", "module", a.live.Module, "error", err)
		a.problem.Store(&err)
		return
	}
	events := make(chan event, 4) // the ring buffer has the rest
	var reading sync.WaitGroup
	defer reading.Wait() // the next map set reads the same ring buffer
	reading.Go(func() { a.read(ctx, events) })
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			a.memory.save()
			return
		case e := <-events:
			err = a.answer(&e)
		case <-a.changed:
			err = a.setMembers()
		case <-tick.C:
			a.memory.save()
		}
		if err != nil {
			slog.Warn("accelerator: connections use plain TCP", "module", a.live.Module, "error", err)
		}
	}
}

// read hands on what the data plane asks.
func (a *accelerator) read(ctx context.Context, to chan<- event) {
	ring, err := a.live.Maps.Get(mapUnjudged)
	if err != nil {
		slog.Error("accelerator: programs cannot be checked", "module", a.live.Module, "error", err)
		return
	}
	for raw, err := range sdk.PromptEvents(ctx, ring) {
		e, ok := parseEvent(raw)
		if err != nil || !ok {
			slog.Warn("accelerator: new programs are no longer checked", "module", a.live.Module, "error", err)
			return
		}
		select {
		case to <- e:
		case <-ctx.Done():
			return
		}
	}
}

// apply writes the config. The mode comes last when it switches on, and first when it switches off.
func (a *accelerator) apply() error {
	entry := a.entry(a.live.Kernel)
	if !a.trusts(a.live.Kernel) {
		entry.Mode = modeOff
	}
	if entry.Mode == modeOff {
		if err := a.live.Maps.Put(mapConfig, uint32(0), entry); err != nil {
			return err
		}
	}
	for i, word := range a.ports() {
		if err := a.live.Maps.Put(mapPorts, uint32(i), word); err != nil {
			return err
		}
	}
	for i, v := range a.visibles() {
		if err := a.live.Maps.Put(mapVisibles, uint32(i), v); err != nil {
			return err
		}
	}
	if err := errors.Join(a.evaluateAll(), a.setMembers()); err != nil {
		return err
	}
	counts, err := readCounts(a.live.Maps)
	a.full.Store(total(counts, reasonFull))
	return errors.Join(err, a.live.Maps.Put(mapConfig, uint32(0), entry))
}

// trusts reports whether redirection on this kernel delivers all data.
func (a *accelerator) trusts(k sdk.Kernel) bool { return k.Sockets["integrity"] }

// Health implements sdk.HealthChecker.
func (a *accelerator) Health() error {
	if err := a.problem.Load(); err != nil {
		return *err
	}
	return nil
}

// AttachmentChanged implements sdk.AttachmentWatcher.
func (a *accelerator) AttachmentChanged(sdk.Attachment, bool) {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// setMembers gives the data plane the network namespaces that take part.
func (a *accelerator) setMembers() error {
	have, err := tableOf[uint64, serviceEntry](a.live.Maps, mapMembers)
	if err != nil {
		return err
	}
	wanted := a.members()
	for cookie := range have {
		if _, stays := wanted[cookie]; stays {
			continue
		}
		if err := a.live.Maps.Delete(mapMembers, cookie); err != nil {
			return err
		}
	}
	for cookie, entry := range wanted {
		was, known := have[cookie]
		if was.Flags &^= searched; known && was == entry {
			continue
		}
		if err := a.live.Maps.Put(mapMembers, cookie, entry); err != nil {
			return err
		}
	}
	return a.forget(wanted)
}

// members are the services that take part, by the cookies of their network namespaces.
func (a *accelerator) members() map[uint64]serviceEntry {
	out := map[uint64]serviceEntry{}
	for _, i := range a.live.Attachments() {
		if i.NetnsCookie == 0 || i.Service == "" {
			continue
		}
		entry := serviceEntry{ID: a.memory.serve(i.Service)}
		if len(a.visibleTo(i)) > 0 {
			entry.Flags |= within
		}
		out[i.NetnsCookie] = entry
	}
	return out
}

// mostRoutes is how many pairs of services are counted before those of removed services are deleted: half of the table.
const mostRoutes = 2048

// forget makes room for services to come.
func (a *accelerator) forget(members map[uint64]serviceEntry) error {
	counts, err := readCounts(a.live.Maps)
	if err != nil {
		return err
	}
	here := map[uint32]bool{}
	for _, s := range members {
		here[s.ID] = true
	}
	if len(counts) > mostRoutes {
		err = errors.Join(a.dropCounts(a.live.Maps, counts, here), dropShares(a.live.Maps, here))
	}
	for route := range counts {
		here[route.Client], here[route.Server] = true, true
	}
	a.memory.forget(here)
	return err
}

// dropCounts deletes the counters of removed services.
func (a *accelerator) dropCounts(m sdk.Maps, counts map[routeKey]countsEntry, here map[uint32]bool) error {
	stays := func(service uint32) bool { return service == theNode || service == unknownService || here[service] }
	for route := range counts {
		if stays(route.Client) && stays(route.Server) {
			continue
		}
		if err := m.Delete(mapCounts, route); err != nil {
			return err
		}
		delete(counts, route)
	}
	a.full.Store(min(a.full.Load(), total(counts, reasonFull)))
	return nil
}

// dropShares deletes unused shares of removed services.
func dropShares(m sdk.Maps, here map[uint32]bool) error {
	shares, err := tableOf[uint32, uint32](m, mapShares)
	if err != nil {
		return err
	}
	for service, connections := range shares {
		if here[service] || connections > 0 {
			continue
		}
		if err := m.Delete(mapShares, service); err != nil {
			return err
		}
	}
	return nil
}

// visibleTo returns the modules on a service that redirected bytes must not bypass.
func (a *accelerator) visibleTo(i sdk.Attachment) (names []string) {
	for _, m := range i.Chain {
		if !slices.Contains(a.Past, m.Package) {
			names = append(names, m.Module)
		}
	}
	slices.Sort(names)
	return names
}

// idOf numbers a service by its name, the same way whenever it is asked.
func idOf(service string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(service))
	if id := h.Sum32(); id != theNode && id != unknownService {
		return id
	}
	return 1
}

// tableOf reads a small table. What changes meanwhile may be missing.
func tableOf[K comparable, V any](m sdk.Maps, name string) (map[K]V, error) {
	all, err := sdk.ReadTable[K, V](m, name)
	if errors.Is(err, ebpf.ErrIterationAborted) {
		err = nil
	}
	return all, err
}

// countKeys is how many entries a table has; about, while they come and go.
func countKeys[K any](m *ebpf.Map) (n int) {
	var key, next K
	var from any
	for m.NextKey(from, &next) == nil && n <= int(m.MaxEntries()) {
		key = next
		from = key
		n++
	}
	return n
}
