// SPDX-License-Identifier: Apache-2.0

// Package view implements the read side of the API: resources with their status, chains, packages, a summary of the
// agent, metrics, events and history.
package view

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/history"
	"github.com/kerb-edge/kerb/internal/live"
	"github.com/kerb-edge/kerb/internal/models"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/samples"
	"github.com/kerb-edge/kerb/internal/status"
	"github.com/kerb-edge/kerb/internal/store"
)

// Views is safe for concurrent use. It waits for a running change only in Look.
type Views struct {
	Base      context.Context // of requests to control planes
	Log       *slog.Logger
	Lock      *sync.Mutex // of Now, which changes write; never held for long
	Now       *status.Node
	Store     *store.Store
	Catalog   *pkgs.Catalog
	Models    *models.Table
	Dataplane *dataplane.Dataplane
	Live      *live.Modules // read under Lock
	ChangeLog *history.Log
	EventLog  *history.Events
	Samples   *samples.Sampler
	// Look returns the state of the kernel, or the last observed one if a running change takes longer than patience.
	Look func(patience time.Duration) (chain.State, error)
	Seen atomic.Pointer[chain.State] // by the last Look
	// ProcessName returns the name under which the agent knows a client's process, or "".
	ProcessName func(pid int) string
	Started     time.Time
	Took        *promtext.Histogram // how long changes took
	Failures    atomic.Uint64       // of changes

	sampled sampled // by Sample only

	mu      sync.Mutex
	clashes map[string]string // of the last scrape: by module, a metric that was omitted
}

// kindOf describes how resources of a kind are read, if not as they were applied. All fields are optional.
type kindOf struct {
	// names lists the resources; by default those that were applied.
	names func() []string
	// views returns a function that returns a resource with its status, or nil. It reads shared data once.
	views func() func(name string) resource.Object
	// one returns one resource with its status, or nil, without reading the data that views share. With brief, it does not
	// read again what it has read from the kernel before.
	one func(name string, brief bool) resource.Object
	// detail adds fields that lists omit.
	detail func(resource.Object) error
}

// kinds returns the kinds that have a status.
func (v *Views) kinds() map[resource.Kind]kindOf {
	return map[resource.Kind]kindOf{
		resource.Module:         {views: v.modules},
		resource.Service:        {views: v.services, one: v.service, detail: v.addPrograms},
		resource.VirtualService: {names: v.Now.Virtual.Names, views: v.virtualServices},
		resource.Set:            {views: v.sets},
		resource.Model:          {views: v.models, detail: v.addVersions},
	}
}

// List returns all resources of a kind with their status.
func (v *Views) List(_ context.Context, kind resource.Kind) ([]resource.Object, error) {
	own := v.kinds()[kind]
	names := own.names
	if names == nil {
		names = func() []string { return v.present().Names(kind) }
	}
	view := v.viewsOf(kind)
	var out []resource.Object
	for _, name := range names() {
		if o := view(name); o != nil {
			out = append(out, o)
		}
	}
	return out, nil
}

// Get returns one resource with its status.
func (v *Views) Get(_ context.Context, kind resource.Kind, name string) (resource.Object, error) {
	o, err := v.get(kind, name, false)
	if detail := v.kinds()[kind].detail; detail != nil && err == nil {
		err = detail(o)
	}
	return o, err
}

// Brief returns one resource without the fields that lists omit, and with the last known state of the kernel.
func (v *Views) Brief(_ context.Context, kind resource.Kind, name string) (resource.Object, error) {
	return v.get(kind, name, true)
}

func (v *Views) get(kind resource.Kind, name string, brief bool) (o resource.Object, err error) {
	if one := v.kinds()[kind].one; one != nil {
		o = one(name, brief)
	} else {
		o = v.viewsOf(kind)(name)
	}
	if o != nil {
		return o, nil
	}
	return nil, &apierrors.NotFound{Kind: kind.Names().Kind, Name: name}
}

// viewsOf returns the views function of a kind. It returns copies, which callers may change.
func (v *Views) viewsOf(kind resource.Kind) func(name string) resource.Object {
	if views := v.kinds()[kind].views; views != nil {
		return views()
	}
	return func(name string) resource.Object {
		if o, ok := v.present()[kind.Names().Kind][name]; ok {
			return kind.Copy(o)
		}
		return nil
	}
}

// Version returns an earlier generation of a resource.
func (v *Views) Version(_ context.Context, kind resource.Kind, name string, generation int64) (resource.Object, error) {
	now, ok := v.present()[kind.Names().Kind][name]
	if !ok {
		return nil, &apierrors.NotFound{Kind: kind.Names().Kind, Name: name}
	}
	o := kind.Copy(now)
	if o.Meta().Generation == generation {
		return o, nil
	}
	document, err := v.Store.Document(kind, name, generation)
	kind.Restore(o, generation, document)
	return o, err
}

// present returns the current desired state, which callers must not change.
func (v *Views) present() resource.State {
	v.Lock.Lock()
	defer v.Lock.Unlock()
	return v.Now.Desired
}

// Evaluate records the conditions of a resource whose state has changed.
func (v *Views) Evaluate(of status.Resource) {
	switch of.Kind {
	case status.Itself.Kind, v1.KindModule, v1.KindService: // without what views read of the kernel
		v.Lock.Lock()
		defer v.Lock.Unlock()
		v.Now.Evaluate(of)
	default:
		kind, err := resource.Find(of.Kind)
		if err != nil || v.viewsOf(kind)(of.Name) == nil {
			v.Now.Recorder.Forget(of)
		}
	}
}
