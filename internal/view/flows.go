// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"net/url"
	"sort"
	"strconv"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/status"
	"github.com/kerb-edge/kerb/sdk"
)

const (
	flowsEvery = time.Second     // period of updates for clients that follow
	flowsLimit = 5 * time.Second // timeout of a query to a module
)

// flowsSeen records what was sent to a client that follows.
type flowsSeen struct {
	until   map[string]uint64 // by module
	missing map[flowPlace]v1.MissingFlows
}

// Flows sends the flows that modules have recorded, and then new ones until ctx ends.
func (v *Views) Flows(ctx context.Context, r v1.FlowsRequest, send func(v1.FlowLine) error) error {
	if r.Follow && r.Since > 0 {
		return &apierrors.Invalid{Reason: "follow shows single flows, and since sums: use one of them"}
	}
	seen := flowsSeen{map[string]uint64{}, map[flowPlace]v1.MissingFlows{}}
	for {
		if err := v.sendFlows(ctx, r, seen, send); err != nil || !r.Follow {
			return err
		}
		if !sdk.Pause(ctx, flowsEvery) {
			return nil
		}
	}
}

// sendFlows sends the flows with packets since the last call, then the numbers of missing flows, and then the errors of
// modules that did not reply.
func (v *Views) sendFlows(ctx context.Context, r v1.FlowsRequest, seen flowsSeen, send func(v1.FlowLine) error) error {
	names, recorders, err := v.flowNames(r.Service)
	if err != nil {
		return err
	}
	q := url.Values{"service": {r.Service}, "peer": {r.Peer}, "protocol": {r.Protocol}, "count": {strconv.Itoa(r.Count)},
		"port": {strconv.Itoa(int(r.Port))}, "since": {strconv.Itoa(r.Since)}}
	var failed []error
	var flows []sdk.FlowRecord
	var missing []v1.MissingFlows
	for module, plane := range recorders {
		q.Set("after", strconv.FormatUint(seen.until[module], 10))
		got, err := queryFlows(ctx, module, plane, q)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		seen.until[module] = got.Now
		flows, missing = append(flows, got.Flows...), append(missing, got.Missing...)
	}
	sort.Slice(missing, func(i, j int) bool {
		a, b := &missing[i], &missing[j]
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Module, b.Module)) < 0
	})
	for i := range flows {
		if err := send(v1.FlowLine{Flow: names.complete(&flows[i])}); err != nil {
			return err
		}
	}
	for i := range missing {
		m := &missing[i]
		place := flowPlace{m.Module, m.Interface, m.Service}
		if seen.missing[place] == *m {
			continue
		}
		seen.missing[place] = *m
		if err := send(v1.FlowLine{Missing: m}); err != nil {
			return err
		}
	}
	return errors.Join(failed...)
}

// queryFlows queries one module.
func queryFlows(ctx context.Context, module string, plane *control.Supervisor, q url.Values) (r sdk.FlowRecords,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, flowsLimit)
	defer cancel()
	if err = plane.Query(ctx, pkgs.QueryFlows+"?"+q.Encode(), &r); err != nil {
		return r, err
	}
	for i := range r.Flows {
		r.Flows[i].Module = module
	}
	for i := range r.Missing {
		r.Missing[i].Module = module
	}
	return r, nil
}

// flowNames has the names of services and modules, which modules do not know.
type flowNames struct {
	services map[string]string // by address
	droppers map[uint32]status.Dropper
}

type flowPlace struct{ module, iface, service string }

// flowNames returns the current names, and the control planes of modules that record flows.
func (v *Views) flowNames(service string) (*flowNames, map[string]*control.Supervisor, error) {
	v.Lock.Lock()
	defer v.Lock.Unlock()
	if _, known := resource.Service.Get(v.Now.Desired, service); service != "" && !known {
		return nil, nil, &apierrors.NotFound{Kind: v1.KindService, Name: service}
	}
	recorders := map[string]*control.Supervisor{}
	for name, plane := range v.Live.Planes() {
		if m := v.Now.Modules[name]; m != nil && m.Pkg != nil && m.Pkg.RecordsFlows {
			recorders[name] = plane
		}
	}
	if len(recorders) == 0 {
		return nil, nil, &apierrors.Conflict{Reason: "no module records flows: apply a Module with package: flows, " +
			"for example attached to services: \"*\""}
	}
	n := &flowNames{map[string]string{}, v.Now.Droppers()}
	for name, virtual := range resource.VirtualService.All(v.Now.Desired) {
		for _, at := range virtual.Spec.Addresses {
			if addr, err := netip.ParseAddr(at.Address); err == nil {
				n.services[addr.String()] = name
			}
		}
	}
	for _, place := range v.Now.Points {
		if place.Service != "" {
			for _, prefix := range place.Link.PeerAddresses {
				n.services[prefix.Addr().String()] = place.Service
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
	if r.Drop != nil {
		by, known := n.droppers[r.Drop.Module]
		if !known {
			by.Reason = func(number int) string { return kerbabi.DropReason(number).String() }
		}
		f.DropModule, f.DropReason = by.Name, by.Reason(int(r.Drop.Reason))
	}
	return f
}
