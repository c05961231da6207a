// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/internal/integration/link"
)

// Remote is a resolver in another process, an integration. Lookups wait until there is one.
type Remote struct {
	source string
	ranges []netip.Prefix
	ready  chan struct{} // closed when sink is set
	sink   Sink
	wake   chan struct{} // signals that there is something to send; has room for one value

	mu       sync.Mutex // not held during calls of the sink: the table calls Lookup with its own lock held
	open     map[netip.Addr]time.Time
	used     map[string]bool // virtual services that the process has to keep up to date
	outgoing []link.Request
	asked    bool // a process takes requests
}

var _ Resolver = (*Remote)(nil)

// NewRemote returns a resolver for addresses in ranges. The names of its results begin with source and a dot.
func NewRemote(source string, ranges []netip.Prefix) *Remote {
	return &Remote{source: source, ranges: ranges, ready: make(chan struct{}), wake: make(chan struct{}, 1),
		open: map[netip.Addr]time.Time{}, used: map[string]bool{}}
}

// Source implements Resolver.
func (r *Remote) Source() string { return r.source }

// Lookup implements Resolver.
func (r *Remote) Lookup(addr netip.Addr) bool {
	if !slices.ContainsFunc(r.ranges, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, open := r.open[addr]; !open {
		r.open[addr] = time.Now().Add(link.LookupLimit)
		r.request(link.Request{Lookup: []netip.Addr{addr}})
	}
	return true
}

// Release implements Resolver.
func (r *Remote) Release(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.used, name)
	r.request(link.Request{Release: []string{name}})
}

// request queues a request. A process that starts later gets all open requests. r.mu is held.
func (r *Remote) request(q link.Request) {
	if !r.asked {
		return
	}
	r.outgoing = append(r.outgoing, q)
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run implements Resolver.
func (r *Remote) Run(ctx context.Context, sink Sink) error {
	known := sink.Records(r.source)
	r.mu.Lock()
	for name := range known {
		r.used[name] = true
	}
	r.mu.Unlock()
	r.sink = sink
	close(r.ready)
	const precision = link.LookupLimit / 20
	tick := time.NewTicker(precision)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			for _, addr := range r.overdue(now) {
				sink.NotFound(r.source, addr)
			}
		}
	}
}

func (r *Remote) overdue(now time.Time) (all []netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for addr, until := range r.open {
		if now.After(until) {
			delete(r.open, addr)
			all = append(all, addr)
		}
	}
	return all
}

// Serve sends requests to a process until ctx ends or send fails. One process is served at a time.
func (r *Remote) Serve(ctx context.Context, send func(link.Request) error) {
	select {
	case <-r.ready:
	case <-ctx.Done():
		return
	}
	r.mu.Lock()
	r.asked = true
	r.outgoing = []link.Request{{Use: slices.Sorted(maps.Keys(r.used)),
		Lookup: slices.SortedFunc(maps.Keys(r.open), netip.Addr.Compare)}}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked, r.outgoing = false, nil
	}()
	for {
		r.mu.Lock()
		due := r.outgoing
		r.outgoing = nil
		r.mu.Unlock()
		for _, q := range due {
			if send(q) != nil {
				return
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
	}
}

// Take processes a result of the process.
func (r *Remote) Take(res link.Result) {
	select {
	case <-r.ready:
	default:
		return // before the first request
	}
	switch {
	case res.Put != nil:
		r.mu.Lock()
		r.used[res.Put.Name] = true
		for _, addr := range addressesOf(res.Put.Spec) {
			delete(r.open, addr)
		}
		r.mu.Unlock()
		r.sink.Put(r.source, *res.Put)
	case res.Delete != "":
		r.mu.Lock()
		delete(r.used, res.Delete)
		r.mu.Unlock()
		r.sink.Delete(r.source, res.Delete)
	case res.NotFound.IsValid():
		r.mu.Lock()
		delete(r.open, res.NotFound)
		r.mu.Unlock()
		r.sink.NotFound(r.source, res.NotFound)
	}
}
