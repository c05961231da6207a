// SPDX-License-Identifier: Apache-2.0

// Package controller counts what the nodes of a cluster say of its ClusterModules, and writes the numbers into their
// status. Nodes do not need it.
package controller

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

const (
	basePath = "/apis/" + api.Group + "/" + api.Version + "/"
	// writeEvery is the time between two comparisons: the status of a ClusterModule goes to all nodes that watch it.
	writeEvery = 2 * time.Second
	// releaseTime is how long a process that ends tries to give the Lease back.
	releaseTime = 2 * time.Second
)

// Run works until the context ends. Of several processes one writes.
func Run(ctx context.Context, kubeconfig string, log *slog.Logger) error {
	client, err := watch.Load(kubeconfig)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	s := &state{modules: map[string]api.ClusterModule{}, nodes: map[string]api.KerbNode{}}
	var running sync.WaitGroup
	running.Go(func() {
		watch.Follow(ctx, client, watch.Resource{Path: basePath + api.ClusterModules}, watch.DefaultTimes, log,
			handler(s, s.modules, func(m api.ClusterModule) api.ClusterModule {
				m.Metadata = api.ObjectMeta{Name: m.Metadata.Name, Generation: m.Metadata.Generation}
				return m
			}))
	})
	running.Go(func() {
		watch.Follow(ctx, client, watch.Resource{Path: basePath + api.KerbNodes}, watch.DefaultTimes, log,
			handler(s, s.nodes, essence))
	})
	e := &elector{client: client, identity: host + "_" + rand.Text()}
	var tried time.Time
	for tick := time.NewTicker(writeEvery); ctx.Err() == nil; {
		if time.Since(tried) >= renewEvery-writeEvery {
			tried = time.Now()
			if err := e.try(ctx); err != nil && ctx.Err() == nil {
				log.Warn("the Lease is not read or renewed", "error", err)
			}
		}
		if e.leads() {
			s.write(ctx, client, e, log)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	e.release(last)
	running.Wait()
	return nil
}

// essence is what is counted of a KerbNode: the messages of 5,000 nodes would take the most memory.
func essence(n api.KerbNode) api.KerbNode {
	out := api.KerbNode{Metadata: api.ObjectMeta{Name: n.Metadata.Name}}
	if n.Status == nil {
		return out
	}
	out.Status = &api.KerbNodeStatus{Updated: n.Status.Updated}
	for _, r := range n.Status.Modules {
		out.Status.Modules = append(out.Status.Modules, api.ModuleReport{Name: r.Name, Reason: r.Reason})
	}
	return out
}

// state is what the API server has said last.
type state struct {
	mu      sync.Mutex
	modules map[string]api.ClusterModule
	nodes   map[string]api.KerbNode
	lists   int // complete lists that have come: before both, numbers would be too low
	changed bool
}

func handler[T any, P watch.Object[T]](s *state, all map[string]T, keep func(T) T) watch.Handler[T] {
	update := func(f func()) {
		s.mu.Lock()
		defer s.mu.Unlock()
		f()
		s.changed = true
	}
	listed := false
	return watch.Handler[T]{
		Replace: func(list []T) {
			update(func() {
				clear(all)
				for _, o := range list {
					all[P(&o).Meta().Name] = keep(o)
				}
				if !listed {
					listed = true
					s.lists++
				}
			})
		},
		Set:    func(o T) { update(func() { all[P(&o).Meta().Name] = keep(o) }) },
		Delete: func(o T) { update(func() { delete(all, P(&o).Meta().Name) }) },
	}
}

// due returns the status of ClusterModules that have another one.
func (s *state) due() map[string]api.ClusterModuleStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.changed || s.lists < 2 {
		return nil
	}
	nodes := make([]api.KerbNode, 0, len(s.nodes))
	for _, n := range s.nodes {
		nodes = append(nodes, n)
	}
	out := map[string]api.ClusterModuleStatus{}
	for name, m := range s.modules {
		if is := api.Count(m.Module(), nodes); m.Status == nil || *m.Status != is {
			out[name] = is
		}
	}
	s.changed = false
	return out
}

// write writes what is due. What fails is due again.
func (s *state) write(ctx context.Context, c *watch.Client, e *elector, log *slog.Logger) {
	for name, status := range s.due() {
		var err error
		if e.leads() {
			err = c.Merge(ctx, basePath+api.ClusterModules+"/"+url.PathEscape(name)+"/status",
				map[string]any{"status": status}, nil)
		}
		if err != nil && ctx.Err() == nil {
			log.Warn("the status of a ClusterModule is not written", "name", name, "error", err)
		}
		s.mu.Lock()
		if m, ok := s.modules[name]; ok && err == nil && e.leads() {
			m.Status = &status
			s.modules[name] = m
		} else if ok {
			s.changed = true
		}
		s.mu.Unlock()
	}
}
