// SPDX-License-Identifier: Apache-2.0

// Package node implements kerb-kube-node, which makes the agent of a Kubernetes node run the modules of its cluster. It
// watches ClusterModules, Modules, the pods of the node and the namespaces, applies modules as owner kubernetes, and
// sets the labels of pods on their services, which kerb-cni creates. It stores the last known state on disk, so that a
// node can start without its API server. After a start, it deletes nothing before it has received complete lists.
package node

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/events"
	"github.com/kerb-edge/kerb/integrations/kubernetes/metrics"
	"github.com/kerb-edge/kerb/integrations/kubernetes/nri"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/internal/serve"
)

// Options are the options of the program.
type Options struct {
	Node       string    // name of the Node
	Kubeconfig string    // empty: the service account of the pod
	Agent      string    // socket of the agent's API
	State      string    // directory of the snapshot
	NRI        string    // socket of the container runtime's NRI; empty: labels come from the API server only
	Metrics    serve.TCP // listener for metrics; none without an address

	Clock func() time.Time // replaced in tests by a clock that is wrong; nil is time.Now
}

// Intervals of retries and writes.
const (
	minRetry  = 250 * time.Millisecond // after the agent did not respond
	maxRetry  = 5 * time.Second
	debounce  = 20 * time.Millisecond // changes within it are handled in one round
	saveEvery = 10 * time.Second      // limits the wear of flash memory
)

// connectAfter is how long the connection to the container runtime is delayed while rounds fail. The delay must be
// bounded: if the runtime creates no containers without this plugin, the agent or the API server may be waiting for
// one.
var connectAfter = 30 * time.Second

// freeOSMemory runs a garbage collection and returns memory to the OS.
var freeOSMemory = debug.FreeOSMemory

// KeepMemory disables explicit garbage collection. In a process with many simulated nodes, each node would run it for
// all of them. Call it before the first Run.
func KeepMemory() { freeOSMemory = func() {} }

// Run runs until the context ends. It tolerates an unreachable API server or agent.
func Run(ctx context.Context, o Options, log *slog.Logger) error {
	api, err := watch.Load(o.Kubeconfig)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.State, 0o700); err != nil {
		return err
	}
	s := newState(o.Node)
	s.clock = o.Clock
	if err := s.restore(o.State); err != nil {
		log.Warn("the snapshot of the last run is not used", "error", err)
	}
	guard, err := newGuard(o.State, s)
	if err != nil {
		log.Warn("the stored state of rollouts is not used", "error", err)
	}
	report := newReporter(api, o.Node, log)
	report.clock = o.Clock
	var running sync.WaitGroup
	running.Go(func() { report.run(ctx) })
	recorder := events.New(api, component, o.Node, events.DefaultLimits, log)
	running.Go(func() { recorder.Run(ctx) })
	followAll(ctx, &running, api, o.Node, s, log)
	var connect func()
	if o.NRI != "" {
		s.runtime.enabled = true
		connect = func() { running.Go(func() { nri.Run(ctx, o.NRI, runtimePods{s, log}, log) }) }
	}
	local := agent{client.New(o.Agent)}
	pulls := newPuller(local, s, log)
	running.Go(func() { pulls.run(ctx) })
	sync := &syncer{state: s, agent: local, log: log, connect: connect, applied: -1, await: map[string]time.Time{},
		puller:  pulls,
		virtual: newVirtual(api, local, o.Node, log), confirm: &confirmer{client: api, log: log},
		guard: guard, ready: &readiness{client: api, node: o.Node, log: log}, events: newPodEvents(recorder)}
	running.Go(func() {
		metrics.Serve(ctx, o.Metrics, func(out *promtext.Set) { sync.figures.collect(out, s, api, recorder) }, log)
	})
	sync.run(ctx, o.State, report)
	sync.ready.setNeeded(false)
	if stop := sync.virtual.stop; stop != nil {
		stop()
	}
	sync.confirm.running.Wait()
	running.Wait()
	return nil
}

// followAll starts a watch for each resource that determines the placement of modules; they run until ctx ends. Of
// namespaces and pods only metadata is requested, and only pods of this node.
func followAll(ctx context.Context, running *sync.WaitGroup, c *watch.Client, node string, s *state, log *slog.Logger) {
	running.Go(func() {
		watch.Follow(ctx, c, watch.Resource{Path: "/apis/" + api.Group + "/" + api.Version + "/" + api.ClusterModules},
			watch.DefaultTimes, log, s.moduleHandler(ofClusterModules))
	})
	running.Go(func() { followModules(ctx, c, s, log) })
	running.Go(func() {
		watch.Follow(ctx, c, watch.Resource{Path: "/apis/" + api.Group + "/" + api.Version + "/" + api.PackageTrusts},
			watch.DefaultTimes, log, s.trustHandler())
	})
	running.Go(func() {
		watch.Follow(ctx, c, watch.Resource{Path: "/api/v1/namespaces", Metadata: true}, watch.DefaultTimes, log,
			s.namespaceHandler())
	})
	running.Go(func() {
		pods := watch.Resource{Path: "/api/v1/pods", Fields: "spec.nodeName=" + node, Metadata: true}
		watch.Follow(ctx, c, pods, watch.DefaultTimes, log, s.podHandler())
	})
}

// run synchronises after changes and periodically, and writes the snapshot.
func (s *syncer) run(ctx context.Context, dir string, report *reporter) {
	var saved, tried view // views of the last written snapshot, and of the last attempt
	retry, savedAt, began := minRetry, time.Time{}, time.Now()
	save := func(v view) {
		if err := s.state.save(dir); err != nil {
			s.log.Warn("the snapshot for the next start is not written", "error", err)
		} else {
			saved = v
			s.figures.snapshot()
		}
		tried, savedAt = v, time.Now()
		freeOSMemory() // the decoded list of all pods is garbage
	}
	for ctx.Err() == nil {
		// The rules are persisted before the agent gets them: a start without the API server must not revert to older ones.
		// Modules of namespaces follow within saveEvery, since their authors must not be able to wear out the flash memory.
		// Later changes are handled by the next round.
		v := s.state.view()
		if v.complete && (v.clusterRules != tried.clusterRules ||
			v.rules != tried.rules && time.Since(savedAt) >= saveEvery) {
			save(v)
		}
		wait, err := s.reconcile(ctx, v)
		if ctx.Err() != nil {
			break
		}
		v = s.state.view()
		connected := s.connectOnce(v.known, time.Since(began), err)
		if v.known {
			is := statusOf(s, err)
			if !connected { // otherwise the next round reports the connection
				report.set(is)
			}
			s.figures.round(s, is.Modules, err)
		}
		if err != nil {
			s.state.setStartReason(err)
			s.log.Warn("the agent is not in sync with the API server yet", "error", err, "retry", retry)
			wait = retry/2 + rand.N(retry)
			retry = min(2*retry, maxRetry)
		} else {
			retry = minRetry
		}
		if v.complete && v.version != saved.version && time.Since(savedAt) >= saveEvery {
			save(v)
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		case <-s.state.urgent:
		case <-s.state.changed:
			select {
			case <-s.state.urgent:
			case <-time.After(debounce):
			}
		}
	}
	save(s.state.view())
}

// connectOnce connects the container runtime after a round that ended with err, unless that should be delayed. It
// reports whether it has connected now.
func (s *syncer) connectOnce(known bool, running time.Duration, err error) bool {
	if s.connect == nil || known && err != nil && s.failed == nil && running < connectAfter {
		return false
	}
	s.connect()
	s.connect = nil
	return true
}
