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

// costOf returns the agent's measurements of a module, or nil before there are any.
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

// excessCost returns by how much a version exceeds spec.rollout.maxCost; empty if it does not. It compares the best
// runs of the slowest kinds of packets, which do not depend on the node's load. What was not measured before, or has
// not been yet, counts as no excess.
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

// listTimeout is how long the API server may take to list the pods of the node before a new version begins.
const listTimeout = 3 * time.Second

// note notes which pods that a module selects are Ready before its new version.
func (s *syncer) note(ctx context.Context, m api.Module, v view, c *counted) {
	if s.ready == nil || m.Spec.Rollout.MaxUnready == nil {
		return
	}
	c.until = s.state.clock.now().Add(m.Spec.Rollout.Soak())
	c.pods = s.ready.now(ctx, func(namespace string, set map[string]string) bool {
		return selects(m, v.namespaces, namespace, func() map[string]string { return set })
	})
}

// soaks reports whether the readiness of pods counts.
func (c *counted) soaks(now time.Time) bool { return c.pods != nil && now.Before(c.until) }

// unready returns why the node has to go back from a version with which pods are no longer Ready; empty if it has not.
func (s *syncer) unready(m api.Module) string {
	c, limit := s.guard.counts[m.Metadata.Name], m.Spec.Rollout.MaxUnready
	if limit == nil || !c.soaks(s.state.clock.now()) {
		return ""
	}
	names := s.ready.unready(c.pods)
	if len(names) <= *limit {
		c.late = 0
		return ""
	}
	if c.late++; c.late < maxUnwell {
		return ""
	}
	return fmt.Sprintf("of the %s that the module selects and that were Ready before the new version, %d are not, among "+
		"them %s, and spec.rollout.maxUnready allows %d%s, or raise maxUnready", plural(len(c.pods), "pod"), len(names),
		names[0], *limit, remedy)
}

// readiness tracks which pods of the node are Ready, by the API server. It watches them only while a new version soaks,
// since other parts need only metadata.
type readiness struct {
	client *watch.Client
	node   string
	log    *slog.Logger
	stop   func() // of the follower; nil if it does not run

	mu     sync.Mutex
	listed chan struct{} // closed when all pods are known
	pods   map[string]podReady
}

// podReady has the used fields of a pod.
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

// Meta returns the metadata.
func (p *podReady) Meta() *api.ObjectMeta { return &p.Metadata }

func (p *podReady) ready() bool {
	return slices.Contains(p.Status.Conditions, api.NodeCondition{Type: "Ready", Status: "True"})
}

// ended reports whether the pod is not meant to be Ready.
func (p *podReady) ended() bool {
	return p.Metadata.Deleted != "" || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed"
}

// now returns the names of the selected pods that are Ready, by UID; nil if the API server does not say.
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

// unready returns the names of the pods that are still there and not Ready.
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

// need ends the follower if it is not needed.
func (r *readiness) need(needed bool) {
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
