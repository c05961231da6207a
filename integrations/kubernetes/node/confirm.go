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

// confirmTimeout is how long the API server may take to list modules.
const confirmTimeout = 10 * time.Second

// confirmer compares what is known of modules and namespaces with the API server's store before a new pod is admitted.
// Watches of different resources are not ordered: the pod may be seen before a module that is older than it. Pods wait
// for it, and nothing else.
type confirmer struct {
	client  *watch.Client
	log     *slog.Logger
	busy    atomic.Bool
	running sync.WaitGroup
}

// start compares in the background, and changes the state if nothing is missing for the pods. Otherwise the watches are
// about to deliver it, and the pods are in the next round.
func (c *confirmer) start(ctx context.Context, s *state, v view, pods []podService) {
	if !c.busy.CompareAndSwap(false, true) {
		return
	}
	c.running.Go(func() {
		defer c.busy.Store(false)
		ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
		defer cancel()
		complete, err := c.complete(ctx, v, pods)
		if err != nil {
			c.log.Warn("new pods wait: modules are not compared with the API server's", "error", err)
		}
		if !complete {
			return
		}
		var newest uint64
		for _, p := range pods {
			newest = max(newest, p.version)
		}
		s.confirm(newest)
	})
}

// complete reports whether the view has all modules, and the labels of the namespaces of the pods.
func (c *confirmer) complete(ctx context.Context, v view, pods []podService) (bool, error) {
	known := map[string]api.ObjectMeta{}
	for _, m := range v.modules {
		known[nodeName(m)] = m.Metadata
	}
	for _, plural := range []string{api.ClusterModules, api.Modules} {
		all, err := c.list(ctx, watch.Resource{Path: "/apis/" + api.Group + "/" + api.Version + "/" + plural, Metadata: true})
		if err != nil {
			return false, err
		}
		for _, o := range all {
			have := known[nodeName(api.Module{Metadata: o.Metadata})]
			if have.UID != o.Metadata.UID || have.Generation < o.Metadata.Generation {
				return false, nil
			}
		}
	}
	compared := map[string]bool{}
	for _, p := range pods {
		if compared[p.namespace] {
			continue
		}
		compared[p.namespace] = true
		all, err := c.list(ctx, watch.Resource{Path: "/api/v1/namespaces", Fields: "metadata.name=" + p.namespace,
			Metadata: true})
		if err != nil || len(all) != 1 || labelsOf(all[0].Metadata.Labels) != v.namespaces[p.namespace] {
			return false, err
		}
	}
	return true, nil
}

func (c *confirmer) list(ctx context.Context, r watch.Resource) ([]api.Object, error) {
	return watch.List[api.Object](ctx, c.client, r, c.log)
}

// confirm admits pods up to a resource version.
func (s *state) confirm(version uint64) {
	s.update(ofPods, func() bool {
		s.confirmed = max(s.confirmed, version)
		return true
	})
}
