// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

const (
	revisionsPath = basePath + api.ModuleRevisions
	// reviseEvery is the time between attempts after an error.
	reviseEvery = 30 * time.Second
)

// revisions keeps the specs that ClusterModules have had. Nothing else depends on them.
type revisions struct {
	client *watch.Client
	log    *slog.Logger

	mu     sync.Mutex
	all    map[string]api.Object // metadata by name; nil before they are listed
	done   map[string]version    // of ClusterModules whose revision exists
	failed time.Time             // when a request failed last
}

// version is a state of a ClusterModule's spec.
type version struct {
	uid        string
	generation int64
}

func newRevisions(c *watch.Client, log *slog.Logger) *revisions {
	return &revisions{client: c, log: log, done: map[string]version{}}
}

func (r *revisions) handler() watch.Handler[api.Object] {
	locked := func(f func()) { r.mu.Lock(); defer r.mu.Unlock(); f() }
	return watch.Handler[api.Object]{
		Replace: func(list []api.Object) {
			locked(func() {
				r.all = map[string]api.Object{}
				for _, o := range list {
					r.all[o.Metadata.Name] = o
				}
				clear(r.done)
			})
		},
		Set: func(o api.Object) { locked(func() { r.all[o.Metadata.Name] = o }) },
		Delete: func(o api.Object) {
			locked(func() {
				delete(r.all, o.Metadata.Name)
				delete(r.done, o.Metadata.Labels[api.LabelModule])
			})
		},
	}
}

// write writes the revisions of specs that have none, and deletes the oldest of too many, as long as the context lasts.
// The rest is for the next call.
func (r *revisions) write(ctx context.Context, modules []api.ClusterModule) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil || time.Since(r.failed) < reviseEvery {
		return
	}
	written := 0
	for _, m := range modules {
		name := m.Metadata.Name
		if r.done[name] == (version{m.Metadata.UID, m.Metadata.Generation}) {
			continue
		}
		if ctx.Err() != nil {
			return
		}
		var is rawModule // read again: to keep the text of all specs would take memory
		err := r.client.Get(ctx, basePath+api.ClusterModules+"/"+url.PathEscape(name), &is)
		if watch.IsStatus(err, http.StatusNotFound) {
			continue // its event is on its way
		}
		if err == nil {
			err = r.revise(ctx, is)
		}
		if err != nil && ctx.Err() != nil && written > 0 {
			return
		}
		if err != nil {
			level := slog.LevelWarn
			if watch.IsStatus(err, http.StatusConflict) {
				level = slog.LevelDebug // the event of a revision that was written before is on its way
			}
			if !errors.Is(ctx.Err(), context.Canceled) {
				r.log.Log(ctx, level, "the revision of a ClusterModule is not written", "name", name, "error", err)
			}
			r.failed = time.Now()
			if _, answered := errors.AsType[*watch.StatusError](err); !answered {
				return
			}
			continue
		}
		written++
		r.done[name] = version{is.Metadata.UID, is.Metadata.Generation}
	}
}

// rawModule is a ClusterModule as the API server has it.
type rawModule struct {
	Metadata api.ObjectMeta `json:"metadata"`
	Spec     api.RawSpec    `json:"spec"`
}

// revise creates the revision of a ClusterModule's spec, or gives an existing one the highest number: undo restores the
// revision before it.
func (r *revisions) revise(ctx context.Context, m rawModule) error {
	module := m.Metadata.Name
	name, data := m.Spec.Revision(module)
	highest := 0
	for _, o := range r.all {
		switch of := o.Metadata; {
		case of.Labels[api.LabelModule] != module:
		case of.Labels[api.LabelModuleUID] != m.Metadata.UID: // of a deleted ClusterModule with the same name
			if err := r.delete(ctx, of.Name); err != nil {
				return err
			}
		default:
			highest = max(highest, api.RevisionNumber(of))
		}
	}
	switch is, there := r.all[name]; {
	case !there && len(data) > api.MaxRevisionData:
		r.log.Warn("a ClusterModule has no revision: its spec is too large", "name", module, "bytes", len(data),
			"most", api.MaxRevisionData)
		return nil
	case !there:
		if err := r.create(ctx, m, name, data, highest+1); err != nil {
			return err
		}
	case api.RevisionNumber(is.Metadata) < highest:
		if err := r.renumber(ctx, is, highest+1); err != nil {
			return err
		}
	}
	before, _ := m.Spec.Previous().Revision(module)
	return r.trim(ctx, module, name, before)
}

// trim deletes the oldest revisions of too many.
func (r *revisions) trim(ctx context.Context, module string, keep ...string) error {
	var own []api.Object
	for _, o := range r.all {
		if o.Metadata.Labels[api.LabelModule] == module {
			own = append(own, o)
		}
	}
	api.SortRevisions(own, func(o api.Object) api.ObjectMeta { return o.Metadata })
	for i := len(own) - 1; i >= 0 && len(own) > api.MaxRevisions; i-- {
		if of := own[i].Metadata.Name; !slices.Contains(keep, of) {
			if err := r.delete(ctx, of); err != nil {
				return err
			}
			own = slices.Delete(own, i, i+1)
		}
	}
	return nil
}

func (r *revisions) create(ctx context.Context, m rawModule, name, data string, number int) error {
	labels := map[string]string{api.LabelModule: m.Metadata.Name, api.LabelModuleUID: m.Metadata.UID,
		api.LabelRevision: strconv.Itoa(number)}
	err := r.client.Create(ctx, revisionsPath, map[string]any{"apiVersion": v1.APIVersion, "kind": "ModuleRevision",
		"metadata": map[string]any{"name": name, "labels": labels, "ownerReferences": []any{map[string]any{
			"apiVersion": v1.APIVersion, "kind": "ClusterModule", "name": m.Metadata.Name, "uid": m.Metadata.UID}}},
		"spec": api.ModuleRevisionSpec{Module: m.Metadata.Name, Data: data}}, nil)
	if err == nil {
		r.all[name] = api.Object{Metadata: api.ObjectMeta{Name: name, Labels: labels}}
	}
	return err
}

// renumber gives a revision another number.
func (r *revisions) renumber(ctx context.Context, o api.Object, number int) error {
	change := map[string]any{api.LabelRevision: strconv.Itoa(number)}
	err := r.client.Merge(ctx, revisionsPath+"/"+url.PathEscape(o.Metadata.Name),
		map[string]any{"metadata": map[string]any{"labels": change}}, nil)
	if watch.IsStatus(err, http.StatusNotFound) {
		delete(r.all, o.Metadata.Name) // it is created at the next attempt
	}
	if err == nil {
		o.Metadata.Labels = maps.Clone(o.Metadata.Labels)
		o.Metadata.Labels[api.LabelRevision] = strconv.Itoa(number)
		r.all[o.Metadata.Name] = o
	}
	return err
}

func (r *revisions) delete(ctx context.Context, name string) error {
	err := r.client.Delete(ctx, revisionsPath+"/"+url.PathEscape(name))
	if watch.IsStatus(err, http.StatusNotFound) {
		err = nil
	}
	if err == nil {
		delete(r.all, name)
	}
	return err
}

// specs returns the ClusterModules, once they are listed.
func (s *state) specs() (all []api.ClusterModule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.synced(ofAll) {
		return nil
	}
	for _, m := range s.modules {
		all = append(all, m)
	}
	return all
}
