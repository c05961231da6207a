// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"maps"
	"slices"

	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// placeSockets adds the cgroups on which modules on sockets run.
func (in Inputs) placeSockets(order []*Module, out Placements) {
	sockets := in.Observed.Sockets
	if sockets == nil {
		return
	}
	chains := in.serviceChains(out)
	for _, m := range order {
		if m.CannotRun || !m.Sockets {
			continue
		}
		at := Placement{Chain: m.SocketsChain(in.Linker)}
		for _, found := range in.cgroupsOf(m) {
			at.Cgroup, at.Attachments = found.Path, []sdk.Attachment{{Cgroup: found.Path, CgroupID: found.ID}}
			out[m.socketPoint(found, chain.All)] = at
		}
		root, exists := sockets.Cgroups[sockets.Root]
		at.Cgroup, at.Attachments = root.Path, in.serviceAttachments(m, chains)
		if len(at.Attachments) > 0 && exists {
			out[m.socketPoint(root, chain.Services)] = at
		}
	}
}

// SocketsChain returns the chain of a module on sockets, which contains only this module.
func (m *Module) SocketsChain(linker string) chain.Spec {
	return chain.Spec{Linker: linker, Side: chain.OnSockets, Direction: chain.Both, Members: []chain.Member{m.Member}}
}

func (m *Module) socketPoint(c cgroup.Cgroup, entry chain.Entry) chain.Point {
	return chain.Point{Side: chain.OnSockets, Cgroup: c.ID, Entry: entry, Module: m.Member.Name}
}

// cgroupsOf lists the existing cgroups that a module selects, without those below another one: the kernel also runs the
// programs of parent cgroups.
func (in Inputs) cgroupsOf(m *Module) []cgroup.Cgroup {
	byPath := map[string]cgroup.Cgroup{}
	for _, path := range m.Resource.Spec.Attach.Cgroups {
		if found, ok := in.Observed.Sockets.Cgroups[path]; ok {
			byPath[found.Path] = found
		}
	}
	var out []cgroup.Cgroup
	for _, path := range slices.Sorted(maps.Keys(byPath)) { // those above come first
		if !slices.ContainsFunc(out, func(above cgroup.Cgroup) bool { return cgroup.Contains(above.Path, path) }) {
			out = append(out, byPath[path])
		}
	}
	return out
}

// serviceAttachments lists the services that a module selects and whose sockets can be distinguished.
func (in Inputs) serviceAttachments(m *Module, chains map[string][]sdk.ChainMember) (out []sdk.Attachment) {
	for _, name := range slices.Sorted(maps.Keys(in.Observed.Services)) {
		cookie := in.Observed.Sockets.Cookies[name]
		if cookie == 0 || !m.Selector.Matches(in.labels(name)) {
			continue
		}
		state := in.Observed.Services[name]
		i := sdk.Attachment{Service: name, NetnsCookie: cookie, Chain: chains[name]}
		for _, a := range state.Addresses {
			i.Addresses = append(i.Addresses, a.String())
		}
		if len(state.Links) > 0 {
			i.Interface, i.Ifindex = state.Links[0].Name, uint32(state.Links[0].Ifindex)
		}
		out = append(out, i)
	}
	return out
}

// serviceChains lists the modules that the packets of each service meet, in either direction and on any interface.
func (in Inputs) serviceChains(placed Placements) map[string][]sdk.ChainMember {
	out := map[string][]sdk.ChainMember{}
	for _, p := range placed.Sorted() {
		service := placed[p].Service
		for _, m := range placed[p].Chain.Members {
			one := sdk.ChainMember{Module: m.Name, Package: in.Modules[m.Name].Package}
			if service != "" && !slices.Contains(out[service], one) {
				out[service] = append(out[service], one)
			}
		}
	}
	return out
}
