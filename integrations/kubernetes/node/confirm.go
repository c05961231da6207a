// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// confirmTimeout is the timeout of listing modules at the API server.
const confirmTimeout = 10 * time.Second

// confirmer compares the known modules and namespaces with the API server before a new pod is admitted. Watches of
// different resources are not ordered: a pod may arrive before a module that is older. Only new pods wait for it.
type confirmer struct {
	client  *watch.Client
	log     *slog.Logger
	busy    atomic.Bool
	running sync.WaitGroup
}

// start compares in the background. It admits the pods of a namespace if nothing is missing. Otherwise the watches will
// deliver the missing objects, and the next round handles the pods.
func (c *confirmer) start(ctx context.Context, s *state, v view, pods []podService) {
	if !c.busy.CompareAndSwap(false, true) {
		return
	}
	newest := map[string]uint64{}
	for _, p := range pods {
		newest[p.namespace] = max(newest[p.namespace], p.version)
	}
	c.running.Go(func() {
		defer c.busy.Store(false)
		if !c.decide(ctx, "", func(ctx context.Context) (bool, error) { return c.hasAll(ctx, v, api.ClusterModules, "") }) {
			return
		}
		for namespace, version := range newest { // in random order, each with its own timeout: none delays another for long
			if c.decide(ctx, namespace, func(ctx context.Context) (bool, error) { return c.complete(ctx, v, namespace) }) {
				s.confirm(namespace, version)
			}
		}
	})
}

// decide logs the result of a comparison, and reports whether nothing was missing.
func (c *confirmer) decide(ctx context.Context, namespace string, compare func(context.Context) (bool, error)) bool {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	complete, err := compare(ctx)
	if err != nil {
		c.log.Warn("new pods wait: modules are not compared with the API server's", "namespace", namespace, "error", err)
	}
	return complete && err == nil
}

// complete reports whether the view has all Modules of a namespace, and the current labels of the namespace.
func (c *confirmer) complete(ctx context.Context, v view, namespace string) (bool, error) {
	all, err := c.list(ctx, watch.Resource{Path: "/api/v1/namespaces", Fields: "metadata.name=" + namespace,
		Metadata: true})
	if err != nil || len(all) != 1 || labelsOf(all[0].Metadata.Labels) != v.namespaces[namespace] {
		return false, err
	}
	return c.hasAll(ctx, v, "namespaces/"+namespace+"/"+api.Modules, namespace)
}

// hasAll reports whether the view has all modules of a collection: the Modules of a namespace, or the ClusterModules.
func (c *confirmer) hasAll(ctx context.Context, v view, collection, namespace string) (bool, error) {
	// api.Module has no field for labels, which may be large.
	all, err := watch.List[api.Module](ctx, c.client, watch.Resource{Metadata: true,
		Path: "/apis/" + api.Group + "/" + api.Version + "/" + collection}, c.log)
	if err != nil {
		return false, err
	}
	known := map[string]api.ObjectMeta{}
	for _, m := range v.modules {
		if m.Metadata.Namespace == namespace {
			known[m.Metadata.Name] = m.Metadata
		}
	}
	for _, o := range all {
		have := known[o.Metadata.Name]
		if have.UID != o.Metadata.UID || have.Generation < o.Metadata.Generation {
			return false, nil
		}
	}
	return true, nil
}

func (c *confirmer) list(ctx context.Context, r watch.Resource) ([]api.Object, error) {
	return watch.List[api.Object](ctx, c.client, r, c.log)
}

// confirm admits the pods of a namespace up to a resourceVersion.
func (s *state) confirm(namespace string, version uint64) {
	s.update(ofPods, func() bool {
		if _, known := s.namespaces[namespace]; known {
			s.confirmed[namespace] = max(s.confirmed[namespace], version)
		}
		return true
	})
}
