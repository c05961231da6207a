// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/observe"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/sdk"
)

// Module is a module as plans see it. If it cannot run, it has only Resource, Selector, Member and CannotRun, and Rank
// if its package is known.
type Module struct {
	Resource  v1.Module
	Selector  service.Selector
	Member    chain.Member // in chains
	Values    string       // identity of the values of KERB_TUNABLES; empty without them
	CannotRun bool

	Package      string
	Rank         func(service bool) int // the package's rank, on interfaces of services or of the node
	Sockets      bool
	Hooks        []chain.Hook // hooks that work with the module's config, the preferred one first
	Entries      map[chain.Hook]map[chain.Direction]bool
	OnServices   []chain.Direction // directions in which packets of services meet the module; all if empty
	OnInterfaces []chain.Direction // the same for interfaces of the node
	Idle         []chain.Direction // directions in which the module has nothing to do with its config
	LinkTypes    []string          // that it reads
	Replies      bool              // it answers packets
	LongReplies  bool              // its replies may be longer than their requests

	DeferredRedirect bool // on TC, subsequent modules see the packets that it redirects

	TranslatesReplies bool         // from instances, to their virtual address
	Inbound           *sdk.Inbound // nil: drops no packets because of their source
}

// Inputs is everything that determines chains and attach points.
type Inputs struct {
	Modules  map[string]*Module
	Services map[string]v1.Service
	Observed observe.Snapshot
	Linker   string // revision of the linker
	// Functions keeps the modules of all chains as functions: see chain.Spec.
	Functions bool
}

// Placement is the owner of an attach point, and its chain.
type Placement struct {
	Service string // empty for an interface of the node
	Link    service.Link
	Chain   chain.Spec

	Cgroup      string           // of sockets: its path
	Attachments []sdk.Attachment // of sockets: the services and cgroups that the module serves there
}

// Placements maps attach points to their chains.
type Placements map[chain.Point]Placement

// Sorted returns the attach points in order.
func (p Placements) Sorted() []chain.Point { return chain.Sorted(p) }

// Desired returns the desired state: chains on attach points, and a map set of each module, even if it is on none.
func (in Inputs) Desired(placed Placements, keep bool) Desired {
	d := Desired{MapSets: map[string]string{}, Values: map[string]string{}, Points: map[chain.Point]chain.Spec{},
		Keep: keep}
	for name, m := range in.Modules {
		d.MapSets[name] = m.Member.ID
		if m.Values != "" {
			d.Values[name] = m.Values
		}
	}
	for p, at := range placed {
		d.Points[p] = at.Chain
	}
	d.Ready, _ = in.Ready(placed) // Place reports cycles
	return d
}

// order returns the modules by their distance from the service, for interfaces of services or of the node.
func (in Inputs) order(service bool) ([]*Module, error) {
	var resources []v1.Module
	for _, name := range slices.Sorted(maps.Keys(in.Modules)) {
		resources = append(resources, in.Modules[name].Resource)
	}
	sorted, err := Order(resources, func(module string) int { return in.rank(module, service) })
	if err != nil {
		return nil, err
	}
	var out []*Module
	for _, m := range sorted {
		out = append(out, in.Modules[m.Metadata.Name])
	}
	return out, nil
}

func (in Inputs) rank(module string, service bool) int {
	if m := in.Modules[module]; m != nil && m.Rank != nil {
		return m.Rank(service)
	}
	return chain.DefaultRank
}

func (in Inputs) labels(service string) map[string]string {
	return in.Services[service].Metadata.Labels
}
