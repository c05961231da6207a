// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"net/netip"
	"net/url"
	"sort"
	"strconv"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/sdk"
)

// flowsQuery is the route of modules that record flows.
const flowsQuery = "flows"

// flowsEvery is how often clients that follow get flows.
const flowsEvery = time.Second

// Flows passes on what modules have recorded, and then what they record until ctx ends.
func (a *Agent) Flows(ctx context.Context, r v1.FlowsRequest, tell func(v1.FlowLine) error) error {
	if r.Follow && r.Since > 0 {
		return &apierrors.Invalid{Reason: "follow shows single flows, and since sums: use one of them"}
	}
	var seen map[string]uint64 // by module
	for {
		next, err := a.tellFlows(ctx, r, seen, tell)
		if err != nil || !r.Follow {
			return err
		}
		seen = next
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(flowsEvery):
		}
	}
}

// tellFlows passes on the flows that have had packets since a time by module, or all, and returns the time by which
// they are known.
func (a *Agent) tellFlows(ctx context.Context, r v1.FlowsRequest, seen map[string]uint64,
	tell func(v1.FlowLine) error) (map[string]uint64, error) {
	names, recorders, err := a.flowNames(r.Service)
	if err != nil {
		return nil, err
	}
	q := url.Values{"service": {r.Service}, "peer": {r.Peer}, "protocol": {r.Protocol}, "count": {strconv.Itoa(r.Count)},
		"port": {strconv.Itoa(int(r.Port))}, "since": {strconv.Itoa(r.Since)}}
	next := map[string]uint64{}
	var flows []sdk.FlowRecord
	var missing []v1.MissingFlows
	for module, plane := range recorders {
		q.Set("after", strconv.FormatUint(seen[module], 10))
		var got sdk.FlowRecords
		if err := plane.Query(ctx, flowsQuery+"?"+q.Encode(), &got); err != nil {
			return nil, err
		}
		next[module] = got.Now
		flows, missing = append(flows, got.Flows...), append(missing, got.Missing...)
	}
	sort.Slice(missing, func(i, j int) bool {
		a, b := &missing[i], &missing[j]
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Module, b.Module)) < 0
	})
	for i := range flows {
		if err := tell(v1.FlowLine{Flow: names.complete(&flows[i])}); err != nil {
			return nil, err
		}
	}
	for i := range missing {
		if err := tell(v1.FlowLine{Missing: &missing[i]}); err != nil || seen != nil {
			return next, err // a client that follows has had them
		}
	}
	return next, nil
}

// flowNames are the names that modules do not know.
type flowNames struct {
	services map[string]string // by address
	members  map[flowPlace][]string
	reason   func(module string, reason int) string
}

type flowPlace struct{ module, iface, direction string }

// flowNames returns the names of now, and the modules that record flows.
func (a *Agent) flowNames(service string) (*flowNames, map[string]*control.Supervisor, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, known := resource.Service.Get(a.now.Desired, service); service != "" && !known {
		return nil, nil, &apierrors.NotFound{Kind: v1.KindService, Name: service}
	}
	recorders := map[string]*control.Supervisor{}
	for name, plane := range a.live.Planes() {
		if m := a.now.Modules[name]; m != nil && m.Pkg != nil && m.Pkg.Queries[flowsQuery] != "" {
			recorders[name] = plane
		}
	}
	if len(recorders) == 0 {
		return nil, nil, &apierrors.Conflict{Reason: "no module records flows: apply a Module with package: flows, " +
			"for example attached to services: \"*\""}
	}
	n := &flowNames{map[string]string{}, map[flowPlace][]string{}, a.now.ReasonNames()}
	for name, v := range resource.VirtualService.All(a.now.Desired) {
		for _, at := range v.Spec.Addresses {
			if addr, err := netip.ParseAddr(at.Address); err == nil {
				n.services[addr.String()] = name
			}
		}
	}
	for _, place := range a.now.Points {
		if place.Service != "" {
			for _, prefix := range place.Link.PeerAddresses {
				n.services[prefix.Addr().String()] = place.Service
			}
		}
		var chain []string
		for _, m := range place.Chain.Members {
			chain = append(chain, m.Name)
		}
		for _, m := range chain {
			if recorders[m] != nil {
				n.members[flowPlace{m, place.Link.Name, string(place.Chain.Direction)}] = chain
			}
		}
	}
	return n, recorders, nil
}

// complete adds names to a flow.
func (n *flowNames) complete(r *sdk.FlowRecord) *v1.Flow {
	f := &r.Flow
	f.SourceService, f.DestinationService = n.services[f.Source], n.services[f.Destination]
	if f.Direction == string(chain.Egress) {
		f.SourceService = cmp.Or(f.Service, f.SourceService)
	} else {
		f.DestinationService = cmp.Or(f.Service, f.DestinationService)
	}
	if d := r.Drop; d != nil {
		if all := n.members[flowPlace{f.Module, f.Interface, d.Direction}]; int(d.Place) < len(all) {
			f.DropModule = all[d.Place]
			f.DropReason = n.reason(f.DropModule, int(d.Reason))
		}
	}
	return f
}
