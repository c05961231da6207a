// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// costOf returns the agent's measurements of a module, or nil if it was not measured yet.
func costOf(m v1.Module) []v1.Latency {
	if m.Status == nil {
		return nil
	}
	return latencyOf(m.Status.Cost)
}

func latencyOf(c *v1.Cost) []v1.Latency {
	if c == nil {
		return nil
	}
	return c.Latency
}

// excessCost describes by how much a version exceeds spec.rollout.maxCost; it is empty if it does not. It compares the
// fastest runs of the slowest kinds of packets, which do not depend on the node's load. Missing measurements count as
// no excess.
func excessCost(r *api.Rollout, before, now []v1.Latency) string {
	if r.MaxCost == nil || before == nil {
		return ""
	}
	for _, is := range now {
		least := 0.0
		for _, was := range before {
			if was.Hook == is.Hook && was.Direction == is.Direction {
				least = was.Least
			}
		}
		if is.Least > least+float64(*r.MaxCost) {
			return fmt.Sprintf("the new version adds %.0f ns to the slowest kind of packet (%s, %s); before, the module added "+
				"%.0f ns, and spec.rollout.maxCost allows %d more", is.Least, is.Hook, is.Direction, least, *r.MaxCost)
		}
	}
	return ""
}

// listTimeout is the timeout of listing the pods of the node before a new version starts.
const listTimeout = 3 * time.Second

// recordReady stores which of the pods that a module selects are Ready before its new version starts.
func (s *syncer) recordReady(ctx context.Context, m api.Module, v view, c *trialState) {
	if s.ready == nil || m.Spec.Rollout.MaxUnready == nil {
		return
	}
	c.soakEnd = s.state.clock.now().Add(m.Spec.Rollout.Soak())
	c.pods = s.ready.now(ctx, func(namespace string, set map[string]string) bool {
		return selects(m, v.namespaces, namespace, func() map[string]string { return set })
	})
}

// soaking reports whether the readiness of pods still counts for the rollout.
func (c *trialState) soaking(now time.Time) bool { return c.pods != nil && now.Before(c.soakEnd) }

// unready returns why the node has to roll back a version with which pods are no longer Ready, or "" if it need not.
func (s *syncer) unready(m api.Module) string {
	c, limit := s.guard.counts[m.Metadata.Name], m.Spec.Rollout.MaxUnready
	if limit == nil || !c.soaking(s.state.clock.now()) {
		return ""
	}
	names := s.ready.unready(c.pods)
	if len(names) <= *limit {
		c.unreadySamples = 0
		return ""
	}
	if c.unreadySamples++; c.unreadySamples < maxBadSamples {
		return ""
	}
	return fmt.Sprintf("of the %s that the module selects and that were Ready before the new version, %d are not, among "+
		"them %s, and spec.rollout.maxUnready allows %d%s, or raise maxUnready", plural(len(c.pods), "pod"), len(names),
		names[0], *limit, rollbackRemedy)
}

// readiness tracks which pods of the node are Ready, with a watch of whole pods. The watch runs only while a new
// version soaks, because all other parts need only metadata.
type readiness struct {
	client *watch.Client
	node   string
	log    *slog.Logger
	stop   func() // ends the watch; nil if there is none

	mu     sync.Mutex
	listed chan struct{} // closed when the pod list is complete
	pods   map[string]podReady
}

// podReady has the fields of a pod that readiness needs.
type podReady struct {
	Metadata api.ObjectMeta `json:"metadata"`
	Spec     struct {
		HostNetwork bool `json:"hostNetwork"`
	} `json:"spec"`
	Status struct {
		Phase      string              `json:"phase"`
		Conditions []api.NodeCondition `json:"conditions"`
	} `json:"status"`
}

func (p *podReady) Meta() *api.ObjectMeta { return &p.Metadata }

func (p *podReady) ready() bool {
	return slices.Contains(p.Status.Conditions, api.NodeCondition{Type: "Ready", Status: "True"})
}

// ended reports whether the pod has completed or is being deleted, so that it need not be Ready.
func (p *podReady) ended() bool {
	return p.Metadata.Deleted != "" || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed"
}

// now returns the names of the selected pods that are Ready, by UID, or nil if the API server does not answer.
func (r *readiness) now(ctx context.Context, selected func(namespace string, set map[string]string) bool,
) map[string]string {
	if r.stop == nil {
		r.start(ctx)
	}
	select {
	case <-r.listed:
	case <-ctx.Done():
		return nil
	case <-time.After(listTimeout):
		r.log.Warn("the readiness of pods does not count in this rollout: the API server does not list them")
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	out := map[string]string{}
	for uid, p := range r.pods {
		if p.ready() && !p.Spec.HostNetwork && selected(p.Metadata.Namespace, p.Metadata.Labels) {
			out[uid] = p.Metadata.Namespace + "/" + p.Metadata.Name
		}
	}
	return out
}

// unready returns the names of the given pods that still exist and are not Ready.
func (r *readiness) unready(pods map[string]string) (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, name := range pods {
		if p, there := r.pods[uid]; there && !p.ready() {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// setNeeded stops the watch if it is not needed.
func (r *readiness) setNeeded(needed bool) {
	if r == nil || needed || r.stop == nil {
		return
	}
	r.stop()
	r.stop = nil
	freeOSMemory() // whole pods were decoded
}

func (r *readiness) start(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	r.listed, r.pods = make(chan struct{}), map[string]podReady{}
	listed := sync.OnceFunc(func() { close(r.listed) })
	locked := func(f func()) { r.mu.Lock(); defer r.mu.Unlock(); f() }
	set := func(p podReady) {
		p.Metadata.Annotations = nil
		if r.pods[p.Metadata.UID] = p; p.ended() {
			delete(r.pods, p.Metadata.UID)
		}
	}
	var running sync.WaitGroup
	running.Go(func() {
		watch.Follow(ctx, r.client, watch.Resource{Path: "/api/v1/pods", Fields: "spec.nodeName=" + r.node},
			watch.DefaultTimes, r.log, watch.Handler[podReady]{
				Replace: func(all []podReady) {
					locked(func() {
						r.pods = make(map[string]podReady, len(all))
						for _, p := range all {
							set(p)
						}
					})
					listed()
				},
				Set:    func(p podReady) { locked(func() { set(p) }) },
				Delete: func(p podReady) { locked(func() { delete(r.pods, p.Metadata.UID) }) },
			})
	})
	r.stop = func() { cancel(); running.Wait() }
}
