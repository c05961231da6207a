// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/sdk"
)

// liveModule is a generation that sees packets, with what its control plane does for it.
type liveModule struct {
	id      string
	live    sdk.Live
	handler http.Handler // nil if the module has no routes
	measure func() ([]sdk.Sample, error)
	cancel  context.CancelFunc
	wait    sync.WaitGroup // for the background work
	users   sync.WaitGroup // requests that read the maps
}

// stop ends the background work. The maps are closed when the last request is done, which a slow client must not make
// the agent wait for.
func (l *liveModule) stop() {
	l.cancel()
	l.wait.Wait()
	go func() {
		l.users.Wait()
		for _, m := range l.live.Maps {
			m.Close()
		}
	}()
}

// adopt makes w the present: control planes of new generations start, those of old ones end.
func (a *Agent) adopt(w world, points map[dataplane.Point]placement) {
	a.desired, a.modules, a.states, a.points = w.desired, w.modules, w.services, points
	a.metrics.publish(a) // before control planes start: they forget what belongs to interfaces that are not listed
	for name, l := range a.live {
		if d := w.modules[name]; d == nil || d.module.ID != l.id {
			l.stop()
			delete(a.live, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.modules)) {
		d := w.modules[name]
		if a.live[name] != nil || d.err != nil {
			continue
		}
		l, err := a.enliven(d)
		if err != nil {
			a.log.Error("control plane cannot start", "module", name, "error", err)
			continue
		}
		a.live[name] = l
	}
}

// enliven opens the maps of a generation and starts its control plane.
func (a *Agent) enliven(d *deployment) (*liveModule, error) {
	name := d.module.Name
	m, err := a.dp.Maps(name, d.module.ID)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(a.base)
	l := &liveModule{id: d.module.ID, cancel: cancel, live: sdk.Live{Module: name, Maps: m, Interface: func() []sdk.Instance { return a.instances(name) }}}
	if h, ok := d.compiled.(sdk.Handler); ok {
		l.handler = h.Handler(l.live)
	}
	if s, ok := d.compiled.(sdk.Measurer); ok {
		l.measure = func() ([]sdk.Sample, error) { return s.Measure(l.live) }
	}
	if r, ok := d.compiled.(sdk.Runner); ok {
		l.wait.Go(func() { r.Run(ctx, l.live) })
	}
	return l, nil
}

// instances lists where a module runs. Control planes call it from goroutines of their own, so that it must not take
// the lock under which they are stopped.
func (a *Agent) instances(name string) []sdk.Instance {
	seen := map[int]bool{}
	var out []sdk.Instance
	for point, place := range a.metrics.placements() {
		for _, m := range place.chain.Members {
			if m.Name == name && !seen[point.Ifindex] {
				seen[point.Ifindex] = true
				out = append(out, sdk.Instance{Service: place.service, Interface: place.link.Name, Ifindex: uint32(point.Ifindex)})
			}
		}
	}
	slices.SortFunc(out, func(x, y sdk.Instance) int { return int(x.Ifindex) - int(y.Ifindex) })
	return out
}

// ServeModule serves the routes of a module's control plane.
func (a *Agent) ServeModule(w http.ResponseWriter, r *http.Request, name string) error {
	l, err := a.useModule(name)
	if err != nil {
		return err
	}
	defer l.users.Done()
	l.handler.ServeHTTP(w, r)
	return nil
}

// useModule keeps the module's maps open until users.Done.
func (a *Agent) useModule(name string) (*liveModule, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.live[name]
	if l == nil {
		return nil, &fault.NotFound{Kind: "Module", Name: name}
	}
	if l.handler == nil {
		return nil, &fault.NotFound{Kind: "Routes of module", Name: name}
	}
	l.users.Add(1) // under the lock that stop is called with: never after its Wait has begun
	return l, nil
}
