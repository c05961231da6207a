// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/integrations/kubernetes/services"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// proxy is the package whose modules serve virtual services.
const proxy = "proxy"

// Intervals of rare work.
const (
	relistEvery = 10 * time.Minute // of Services beyond the limits
	maxZoneGap  = time.Hour        // longest interval of reading the Node's zone
)

// virtual synchronises the agent's virtual services with the cluster's Services. It watches Services only while a
// ClusterModule deploys the proxy on pods, so that they cost the node and the API server nothing otherwise.
type virtual struct {
	client *watch.Client
	agent  agent
	node   string
	log    *slog.Logger
	state  *serviceCache

	stop    func()    // ends the watches; nil if they do not run
	cleared bool      // virtual services of an earlier run were deleted from the agent
	started time.Time // start of the watches
	zone    string    // of the Node
	zoneDue time.Time // next read while zone is empty, and the interval since the last read
	zoneGap time.Duration
	full    time.Time             // time of the last complete apply
	applied map[services.Key]bool // virtual services in the agent
	refused map[services.Key]string
}

func newVirtual(c *watch.Client, a agent, node string, log *slog.Logger) *virtual {
	return &virtual{client: c, agent: a, node: node, log: log, state: newServiceCache()}
}

// setNeeded starts or stops the watches. When they stop, the agent's virtual services are deleted, and kube-proxy
// serves.
func (v *virtual) setNeeded(ctx context.Context, view view) {
	wanted := slices.ContainsFunc(view.modules, func(m api.Module) bool {
		return m.Metadata.Namespace == "" && m.Spec.Package.Name == proxy
	})
	switch {
	case wanted && v.stop == nil:
		v.start(ctx)
	case wanted && time.Since(v.started) >= relistEvery && v.state.needsRelist():
		v.stop()
		v.state.reset() // the agent keeps its virtual services until both lists are complete
		v.start(ctx)
	case !wanted && view.complete && (v.stop != nil || !v.cleared):
		if v.stop != nil {
			v.stop()
			v.stop = nil
			v.state.reset()
		}
		err := v.agent.applyVirtual(ctx, &array{}, true)
		if v.cleared = err == nil; err != nil {
			v.log.Warn("virtual services of the cluster are not deleted yet", "error", err)
		}
	}
}

// start watches Services and EndpointSlices of the cluster. It sets stop, which returns after all goroutines have
// ended.
func (v *virtual) start(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	v.cleared, v.full, v.started = false, time.Time{}, time.Now()
	var running sync.WaitGroup
	running.Go(func() {
		watch.Follow(ctx, v.client, watch.Resource{Path: services.ServicesPath}, watch.DefaultTimes, v.log,
			v.state.serviceHandler())
	})
	running.Go(func() {
		watch.Follow(ctx, v.client, watch.Resource{Path: services.SlicesPath}, watch.DefaultTimes, v.log,
			v.state.sliceHandler())
	})
	running.Go(func() { v.run(ctx) })
	v.stop = func() { cancel(); running.Wait() }
}

// readZone reads the zone of the Node until it is known: the API server may be unreachable, and the label may be added
// later. A Node is large and may never have a zone, so the interval grows to an hour.
func (v *virtual) readZone(ctx context.Context) {
	if v.zone != "" || time.Now().Before(v.zoneDue) {
		return
	}
	var node api.Object
	if err := v.client.Get(ctx, "/api/v1/nodes/"+v.node, &node); err != nil {
		v.log.Warn("the zone of this node is not known: hints of EndpointSlices are ignored", "error", err)
	}
	v.zone = node.Metadata.Labels["topology.kubernetes.io/zone"]
	v.zoneGap = min(max(2*v.zoneGap, fullEvery), maxZoneGap)
	v.zoneDue = time.Now().Add(v.zoneGap)
}

// run applies changes until the context ends.
func (v *virtual) run(ctx context.Context) {
	for retry := minRetry; ctx.Err() == nil; {
		wait := fullEvery
		if err := v.sync(ctx); err != nil {
			v.log.Warn("the agent does not have all virtual services yet", "error", err, "retry", retry)
			wait, retry = retry/2+rand.N(retry), min(2*retry, maxRetry)
			v.full = time.Time{}
		} else {
			retry = minRetry
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		case <-v.state.changed:
			time.Sleep(debounce)
		}
	}
}

// location returns the node and zone of the clients.
func (v *virtual) location() services.Node { return services.Node{Name: v.node, Zone: v.zone} }

// array returns a reader of the virtual services of Services.
func (v *virtual) array(of []services.Key) *array {
	node := v.location()
	return &array{keys: of, text: func(key services.Key) []byte { return v.state.text(key, node) }}
}

// sync applies changes, and periodically everything, since other clients of the agent may have changed it.
func (v *virtual) sync(ctx context.Context) error {
	full := time.Since(v.full) >= fullEvery
	if full {
		v.readZone(ctx)
	}
	desired, gone, ok := v.state.takeChanges(v.location(), full)
	if !ok {
		return nil // before both lists are complete, Services would lack endpoints
	}
	if err := v.remove(ctx, gone); err != nil { // first, since another Service may have one of their addresses
		return err
	}
	if full {
		v.applied, v.refused = map[services.Key]bool{}, map[services.Key]string{}
	}
	slices.SortFunc(desired, func(a, b services.Key) int { // for a deterministic order
		return strings.Compare(a.String(), b.String())
	})
	for _, key := range desired {
		delete(v.refused, key)
	}
	var err error
	if len(desired) > 0 || full {
		err = v.agent.applyVirtual(ctx, v.array(desired), full)
	}
	if answered(err) {
		err = v.applyEach(ctx, desired, full)
	}
	if err != nil {
		return err
	}
	for _, key := range desired {
		v.applied[key] = v.refused[key] == ""
	}
	v.state.setRefused(v.refused)
	if full {
		v.full = time.Now()
	}
	return nil
}

// applyEach applies virtual services one by one. A rejected one is deleted from the agent, and kube-proxy serves it.
func (v *virtual) applyEach(ctx context.Context, all []services.Key, prune bool) error {
	var good []services.Key
	for _, key := range all {
		err := v.agent.applyVirtual(ctx, v.array([]services.Key{key}), false)
		detail, refused := refusal(err)
		switch {
		case err == nil:
			good = append(good, key)
		case !refused:
			return fmt.Errorf("%s: %w", key, err)
		default:
			v.refused[key] = detail
			if !prune {
				if err := v.remove(ctx, []services.Key{key}); err != nil {
					return err
				}
			}
		}
	}
	if !prune {
		return nil
	}
	return v.agent.applyVirtual(ctx, v.array(good), true)
}

func (v *virtual) remove(ctx context.Context, gone []services.Key) error {
	for _, key := range gone {
		if !v.applied[key] {
			continue
		}
		err := v.agent.delete(ctx, names.OwnerServices, ref{Kind: v1.KindVirtualService,
			Name: names.VirtualService(key.Namespace, key.Name)})
		if _, refused := refusal(err); err != nil && !refused {
			return err // a rejected deletion is repeated by the next complete apply
		}
		delete(v.applied, key)
	}
	return nil
}
