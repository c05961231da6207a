// SPDX-License-Identifier: Apache-2.0

// Package controller implements kerb-kube-controller. It counts the reports of nodes about ClusterModules, writes the
// counts to their status, and rolls out new versions in waves. Nodes keep running their modules without it.
package controller

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/events"
	"github.com/kerb-edge/kerb/integrations/kubernetes/metrics"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/internal/serve"
)

const (
	basePath = "/apis/" + api.Group + "/" + api.Version + "/"
	// writeEvery is the time between two comparisons, since each write of a ClusterModule's status is sent to all nodes.
	writeEvery = 2 * time.Second
	// mostWriting is how long statuses may take to write, and revisions, before the Lease is renewed. The rest is due
	// again.
	mostWriting = 3 * time.Second
	// releaseTime is how long a process that ends tries to give the Lease back.
	releaseTime = 2 * time.Second
)

// Run runs the controller until the context ends. If there are several processes, only the leader writes.
func Run(ctx context.Context, kubeconfig string, tcp serve.TCP, log *slog.Logger) error {
	client, err := watch.Load(kubeconfig)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	s := newState()
	var running sync.WaitGroup
	r := newRevisions(client, log)
	followAll(ctx, &running, client, s, r, log)
	recorder := recorders{rollouts: events.New(client, leaseName, host, eventLimits, log),
		problems: events.New(client, leaseName, host, eventLimits, log)}
	running.Go(func() { recorder.run(ctx) })
	e := &elector{client: client, identity: host + "_" + rand.Text()}
	running.Go(func() {
		metrics.Serve(ctx, tcp, func(out *promtext.Set) {
			metrics.API(out, client.Stats(), recorder.counts())
			s.collect(out)
		}, log)
	})
	var tried time.Time
	for tick := time.NewTicker(writeEvery); ctx.Err() == nil; {
		if time.Since(tried) >= renewEvery-writeEvery {
			tried = time.Now()
			if err := e.try(ctx); err != nil && ctx.Err() == nil {
				log.Warn("the Lease is not read or renewed", "error", err)
			}
		}
		s.turn(ctx, client, e, recorder, log)
		if e.leads() {
			e.while(ctx, mostWriting, func(ctx context.Context) { r.write(ctx, s.specs()) })
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

// turn writes statuses that are due, and their Events, if this process is the leader. It drops queued Events after
// another process has led, which has written later ones. It keeps them while there is no leader, as their statuses have
// been written already.
func (s *state) turn(ctx context.Context, client *watch.Client, e *elector, recorder recorders, log *slog.Logger) {
	leads := e.leads()
	s.lead(leads)
	if e.other {
		e.other = false
		recorder.clear()
	}
	if !leads {
		s.forget()
		return
	}
	e.while(ctx, mostWriting, func(ctx context.Context) { s.write(ctx, client, e, recorder, log) })
	e.while(ctx, mostWriting, func(ctx context.Context) { s.writeTenants(ctx, client, e, recorder, log) })
}

// followAll follows the resources that it counts, each in a goroutine until ctx ends.
func followAll(ctx context.Context, running *sync.WaitGroup, client *watch.Client, s *state, r *revisions,
	log *slog.Logger) {
	running.Go(func() {
		watch.Follow(ctx, client, watch.Resource{Path: basePath + api.ClusterModules}, watch.DefaultTimes, log,
			handler(s, ofModules, s.modules, func(m api.ClusterModule) api.ClusterModule {
				m.Metadata = identity(m.Metadata)
				return m
			}))
	})
	running.Go(func() {
		h := handler(s, ofTenants, s.tenants, func(m tenant) tenant {
			m.Metadata = identity(m.Metadata)
			return m
		})
		h.Share = func() func(*tenant) string { // their labels may be large, and are in memory together
			return func(m *tenant) string { m.Metadata = identity(m.Metadata); return "" }
		}
		watch.Follow(ctx, client, watch.Resource{Path: basePath + api.Modules}, watch.DefaultTimes, log, h)
	})
	running.Go(func() {
		watch.Follow(ctx, client, watch.Resource{Path: basePath + api.KerbNodes}, watch.DefaultTimes, log,
			handler(s, ofNodes, s.nodes, usedFields))
	})
	running.Go(func() {
		watch.Follow(ctx, client, watch.Resource{Path: api.NodesPath}, watch.DefaultTimes, log,
			handler(s, ofHosts, s.hosts, readiness))
	})
	running.Go(func() {
		watch.Follow(ctx, client, watch.Resource{Path: revisionsPath, Metadata: true}, watch.DefaultTimes, log, r.handler())
	})
}

// usedFields returns the used fields of a KerbNode: whole objects of 5,000 nodes would take the most memory.
func usedFields(n api.KerbNode) api.KerbNode {
	out := api.KerbNode{Metadata: api.ObjectMeta{Name: n.Metadata.Name}}
	if n.Status == nil {
		return out
	}
	out.Status = &api.KerbNodeStatus{Updated: n.Status.Updated, Checked: n.Status.Checked,
		Kernel: n.Status.Kernel, Architecture: n.Status.Architecture}
	for _, r := range n.Status.Modules {
		out.Status.Modules = append(out.Status.Modules, api.ModuleReport{Name: r.Name, Generation: r.Generation,
			Reason: r.Reason, Message: truncate(r.Message, maxSaid)})
	}
	return out
}

// readiness returns the used conditions of a Node: the kubelet updates the others every five minutes.
func readiness(n api.Node) api.Node {
	out := api.Node{Metadata: api.ObjectMeta{Name: n.Metadata.Name}}
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" {
			out.Status.Conditions = append(out.Status.Conditions, c)
		}
	}
	return out
}

// state is the last known state of the API server.
type state struct {
	mu      sync.Mutex
	modules map[string]api.ClusterModule
	nodes   map[string]api.KerbNode
	hosts   map[string]api.Node
	tenants map[string]tenant // by NAMESPACE/NAME
	waves   map[string]*wave  // of rollouts in waves
	lists   int               // bits of complete lists that have come
	changed bool
	leads   bool

	tenantsChanged bool
}

// The resources that are followed. Before the lists of all but Modules, numbers of ClusterModules would be wrong.
const (
	ofModules = 1 << iota
	ofNodes
	ofHosts
	ofAll     = 1<<iota - 1
	ofTenants = ofAll + 1
)

func newState() *state {
	return &state{modules: map[string]api.ClusterModule{}, nodes: map[string]api.KerbNode{}, hosts: map[string]api.Node{},
		tenants: map[string]tenant{}, waves: map[string]*wave{}}
}

// synced reports whether the lists of some resources have come.
func (s *state) synced(bits int) bool { return s.lists&bits == bits }

// identity returns the used metadata of an object with a status.
func identity(m api.ObjectMeta) api.ObjectMeta {
	return api.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, Generation: m.Generation,
		ResourceVersion: m.ResourceVersion}
}

// nameOf is NAME, or NAMESPACE/NAME: as in reports of nodes.
func nameOf(m *api.ObjectMeta) string { return strings.TrimPrefix(m.Namespace+"/"+m.Name, "/") }

func handler[T any, P watch.Object[T]](s *state, bit int, all map[string]T, keep func(T) T) watch.Handler[T] {
	update := func(f func() bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if f() {
			s.changed, s.tenantsChanged = true, true
		}
	}
	return watch.Handler[T]{
		Replace: func(list []T) {
			update(func() bool {
				clear(all)
				for _, o := range list {
					all[nameOf(P(&o).Meta())] = keep(o)
				}
				s.lists |= bit
				return true
			})
		},
		Set: func(o T) {
			update(func() bool {
				is, name := keep(o), nameOf(P(&o).Meta())
				before, known := all[name]
				all[name] = is
				return !known || !reflect.DeepEqual(before, is)
			})
		},
		Delete: func(o T) { update(func() bool { delete(all, nameOf(P(&o).Meta())); return true }) },
	}
}

// forget clears the state of rollouts, since another process may have led in the meantime.
func (s *state) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.waves)
	s.changed, s.tenantsChanged = true, true
}

// change is a ClusterModule with the status that it should have.
type change struct {
	api.ClusterModule
	before *api.ClusterModuleStatus
}

// due returns the ClusterModules that should have another status. Rollouts also change with time.
func (s *state) due(now time.Time) map[string]change {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.synced(ofAll) {
		return nil
	}
	nodes := slices.Collect(maps.Values(s.nodes))
	lost := map[string]bool{}
	for name, n := range s.hosts {
		lost[name] = n.Lost()
	}
	out, answering := map[string]change{}, api.Silence(nodes, lost)
	for name, m := range s.modules {
		if !s.changed && s.waves[name] == nil {
			continue
		}
		if is := s.statusOf(m, nodes, answering, now); m.Status == nil || !reflect.DeepEqual(*m.Status, is) {
			before := m.Status
			m.Status = &is
			out[name] = change{m, before}
		}
	}
	maps.DeleteFunc(s.waves, func(name string, _ *wave) bool { _, there := s.modules[name]; return !there })
	s.changed = false
	return out
}

// statusOf returns the desired status of a ClusterModule. Waves consider only nodes that are not lost. The counts
// include all nodes, so that the status does not change whenever a node is lost.
func (s *state) statusOf(m api.ClusterModule, nodes, answering []api.KerbNode, now time.Time) api.ClusterModuleStatus {
	name, of := m.Metadata.Name, m.Module()
	var before []api.Condition
	if m.Status != nil {
		before = m.Status.Conditions
	}
	if r := m.Spec.Rollout; r == nil || r.ByHand() {
		delete(s.waves, name)
		is := api.Count(of, nodes)
		is.Conditions = settle(before, m.Metadata, now, clusterReady(m, is, nodes))
		return is
	}
	if s.waves[name] == nil {
		s.waves[name] = &wave{}
		if is := m.Status; is != nil && is.Rollout != nil && slices.ContainsFunc(is.Conditions, func(c api.Condition) bool {
			return c.Type == conditionRolledOut && c.Status == "True"
		}) {
			s.waves[name].complete = is.Rollout.Version
		}
	}
	if p := of.Progress(); p != nil && p.Percent == 100 && s.waves[name].complete == p.Version {
		answering = nodes // no longer used
	}
	rollout, c := advance(of, answering, s.waves[name], now)
	of.Status = &api.ModuleStatus{Rollout: rollout}
	is := api.Count(of, nodes)
	is.Rollout = rollout
	is.Conditions = settle(before, m.Metadata, now, c, clusterReady(m, is, nodes))
	return is
}

// write writes the statuses that are due, and records Events. Failed writes are due again.
func (s *state) write(ctx context.Context, c *watch.Client, e *elector, recorder recorders,
	log *slog.Logger) {
	for name, due := range s.due(time.Now()) {
		written, err := due.ClusterModule, ctx.Err()
		if err == nil && e.leads() {
			err = c.Merge(ctx, basePath+api.ClusterModules+"/"+url.PathEscape(name)+"/status", patchOf(due), &written)
			conflict := watch.IsStatus(err, http.StatusConflict) // the event of another change is on its way
			if err != nil && !conflict && !errors.Is(ctx.Err(), context.Canceled) {
				log.Warn("the status of a ClusterModule is not written", "name", name, "error", err)
			}
		}
		if err == nil && e.leads() {
			recorder.record(due)
		}
		s.mu.Lock()
		if m, ok := s.modules[name]; ok && err == nil && e.leads() && m.Metadata.ResourceVersion ==
			due.Metadata.ResourceVersion {
			m.Status, m.Metadata.ResourceVersion = due.Status, written.Metadata.ResourceVersion
			s.modules[name] = m
		} else if ok {
			s.changed = true
		}
		s.mu.Unlock()
	}
}

// patchOf is the merge patch that gives a ClusterModule its status, if the object is as it was: the
// percentage is that of the version that was counted.
func patchOf(m change) map[string]any {
	is := m.Status
	status := map[string]any{"observedGeneration": is.Generation, "desired": is.Desired, "ready": is.Ready,
		"failed": is.Failed, "rolledBack": is.RolledBack, "problems": is.Problems, "rollout": nil,
		"conditions": is.Conditions}
	if r := is.Rollout; r != nil {
		status["rollout"] = map[string]any{"version": r.Version, "percent": r.Percent, "canaries": r.Canaries,
			"since": r.Since, "halted": r.Halted, "accepted": r.Accepted}
	}
	return patch(m.Metadata, status)
}

// patch is the merge patch of a status, for the object as it was.
func patch(m api.ObjectMeta, status any) map[string]any {
	return map[string]any{"metadata": map[string]any{"resourceVersion": m.ResourceVersion}, "status": status}
}
