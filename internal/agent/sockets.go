// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/sdk"
)

// socketsView is what modules on sockets are placed by.
type socketsView struct {
	cgroups map[string]cgroup.Cgroup // by the path that somebody wrote; those that are there
	cookies map[string]uint64        // of network namespaces, by service; those that are known
	errs    map[string]error         // by path or serviceKey: why not
}

// onSockets tells whether the module runs on sockets and not on packets.
func (d *deployment) onSockets() bool { return d.pkg != nil && d.pkg.RunsOn(pkgs.HookSockets) }

// checkAttach compares the attach points that a module is wanted on with what its package runs on.
func (d *deployment) checkAttach() error {
	attach := d.resource.Spec.Attach
	wrong := func(field, reason string) error {
		return d.invalid("spec."+field, fmt.Errorf("package %s %s", d.pkg.Name, reason))
	}
	switch {
	case !d.onSockets() && len(attach.Cgroups) > 0:
		return wrong("attach.cgroups", "runs on packets, which cgroups do not have; select services or interfaces")
	case !d.onSockets():
		return nil
	case d.resource.Spec.FailurePolicy == v1.FailClosed:
		return wrong("failurePolicy", "runs on sockets, which cannot fail closed: without it they are plain TCP")
	case len(attach.Interfaces) > 0:
		return wrong("attach.interfaces", "runs on sockets, which interfaces do not have; select services or cgroups")
	}
	spec, err := d.pkg.Spec(pkgs.HookSockets)
	if err != nil {
		return d.invalid("spec.package", err)
	}
	if attach.Services != "" && spec.Programs[pkgs.EntryServices] == nil {
		return wrong("attach.services", "has no program for services; set cgroups")
	}
	if len(attach.Cgroups) > 0 && spec.Programs[pkgs.EntryAll] == nil {
		return wrong("attach.cgroups", "has no program for whole cgroups; select services")
	}
	return nil
}

// checkCgroups refuses new cgroups that are not there now: most often a mistake in the path. Later they may go and come.
func (a *Agent) checkCgroups(d *deployment) error {
	var known []string
	if before := a.modules[d.module.Name]; before != nil {
		known = before.resource.Spec.Attach.Cgroups
	}
	for i, path := range d.resource.Spec.Attach.Cgroups {
		if slices.Contains(known, path) {
			continue
		}
		if _, err := cgroup.Find(path); err != nil {
			return d.invalid(fmt.Sprintf("spec.attach.cgroups[%d]", i), err)
		}
	}
	return nil
}

// cgroupPaths are those that a module needs: its own, and for services the agent's.
func (a *Agent) cgroupPaths(d *deployment) []string {
	if !d.onSockets() {
		return nil
	}
	paths := slices.Clone(d.resource.Spec.Attach.Cgroups)
	if d.resource.Spec.Attach.Services != "" {
		paths = append(paths, a.cgroup)
	}
	return paths
}

// lookAtSockets finds cgroups and the cookies of network namespaces, if a module needs them.
func (a *Agent) lookAtSockets(w world) *socketsView {
	v := &socketsView{cgroups: map[string]cgroup.Cgroup{}, cookies: map[string]uint64{}, errs: map[string]error{}}
	for _, d := range w.modules {
		for _, path := range a.cgroupPaths(d) {
			if found, err := cgroup.Find(path); err != nil {
				v.errs[path] = err
			} else {
				v.cgroups[path] = found
			}
		}
		for name, s := range w.desired.Services {
			if d.onSockets() && d.selector.Matches(s.Metadata.Labels) && w.services[name].Err == nil {
				v.cookies[name], v.errs[serviceKey(name)] = a.cookies.Of(s.Spec, w.services[name].Links)
			}
		}
	}
	return v
}

func serviceKey(name string) string { return "service " + name }

// placeSockets adds the cgroups on which modules on sockets run.
func (w world) placeSockets(order []*deployment, out map[chain.Point]placement) {
	if w.sockets == nil {
		return
	}
	chains := w.serviceChains(out)
	for _, d := range order {
		if d.err != nil || !d.onSockets() {
			continue
		}
		place := placement{chain: d.socketsChain()}
		for _, found := range w.cgroupsOf(d) {
			place.cgroup, place.instances = found.Path, []sdk.Instance{{Cgroup: found.Path, CgroupID: found.ID}}
			out[d.socketPoint(found, chain.All)] = place
		}
		own, there := w.sockets.cgroups[w.cgroup]
		place.cgroup, place.instances = own.Path, w.serviceInstances(d, chains)
		if len(place.instances) > 0 && there {
			out[d.socketPoint(own, chain.Services)] = place
		}
	}
}

func (d *deployment) socketsChain() chain.Spec {
	return chain.Spec{Linker: dataplane.Linker(), Side: chain.OnSockets, Direction: chain.Both, Members: []chain.Member{d.member()}}
}

func (d *deployment) socketPoint(c cgroup.Cgroup, entry chain.Entry) chain.Point {
	return chain.Point{Side: chain.OnSockets, Cgroup: c.ID, Entry: entry, Module: d.module.Name}
}

// cgroupsOf are those that a module selects and that are there. One below another is left out: the kernel runs the programs of
// those above, too.
func (w world) cgroupsOf(d *deployment) []cgroup.Cgroup {
	byPath := map[string]cgroup.Cgroup{}
	for _, path := range d.resource.Spec.Attach.Cgroups {
		if found, ok := w.sockets.cgroups[path]; ok {
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

// serviceInstances are the services that a module selects and whose sockets can be told apart.
func (w world) serviceInstances(d *deployment, chains map[string][]sdk.ChainMember) (out []sdk.Instance) {
	for _, name := range slices.Sorted(maps.Keys(w.services)) {
		cookie := w.sockets.cookies[name]
		if cookie == 0 || !d.selector.Matches(w.desired.Services[name].Metadata.Labels) {
			continue
		}
		i := sdk.Instance{Service: name, NetnsCookie: cookie, Addresses: texts(w.services[name].Addresses), Chain: chains[name]}
		if links := w.services[name].Links; len(links) > 0 {
			i.Interface, i.Ifindex = links[0].Name, uint32(links[0].Ifindex)
		}
		out = append(out, i)
	}
	return out
}

// serviceChains are the modules that the packets of services meet, in either direction and on any of their interfaces.
func (w world) serviceChains(points map[chain.Point]placement) map[string][]sdk.ChainMember {
	out := map[string][]sdk.ChainMember{}
	for _, p := range sortedPoints(points) {
		service := points[p].service
		for _, m := range points[p].chain.Members {
			one := sdk.ChainMember{Module: m.Name}
			if d := w.modules[m.Name]; d.pkg != nil {
				one.Package = d.pkg.Name
			}
			if service != "" && !slices.Contains(out[service], one) {
				out[service] = append(out[service], one)
			}
		}
	}
	return out
}

// tend has idle sockets of a module rest while it is attached, and brings those back that talk again.
func (a *Agent) tend(d *deployment, l *liveModule) {
	if !d.onSockets() || len(a.instances(d.module.Name)) == 0 {
		l.tended.Close()
		l.tended = nil
		return
	}
	if l.tended != nil {
		return
	}
	gaveUp := func(err error) {
		a.log.Error("idle sockets are no longer aged out of the module's map", "module", d.module.Name, "error", err)
	}
	var err error
	if l.tended, err = a.dp.Tend(d.socketsChain(), gaveUp); err != nil {
		gaveUp(err)
	}
}

// placedCondition tells whether a module on sockets is wherever it is wanted.
func (a *Agent) placedCondition(d *deployment) v1.Condition {
	c := v1.Condition{Type: "Placed", Status: "True", Reason: "AllAttached"}
	if others := a.neighbours(d); len(others) > 0 {
		c.Message = "sockets that another program also holds in a map are not changed; other programs on the same cgroup: " + strings.Join(others, ", ")
	}
	if texts := a.unplaced(d); len(texts) > 0 {
		c.Status, c.Reason, c.Message = "False", "PartiallyAttached", strings.Join(texts, "; ")
	}
	return c
}

// neighbours are programs of others that see the sockets of a module's cgroups.
func (a *Agent) neighbours(d *deployment) (out []string) {
	for _, p := range sortedPoints(a.points) {
		if p.Module != d.module.Name {
			continue
		}
		for _, program := range a.dp.View(p).Programs {
			if !strings.HasPrefix(program, dataplane.SocketsPrefix) && !slices.Contains(out, program) {
				out = append(out, program)
			}
		}
	}
	return out
}

func (a *Agent) unplaced(d *deployment) (out []string) {
	if a.sockets == nil {
		return nil
	}
	add := func(key, format string, args ...any) {
		if err := a.sockets.errs[key]; err != nil {
			out = append(out, fmt.Sprintf(format, args...)+err.Error())
		}
	}
	for _, path := range a.cgroupPaths(d) {
		add(path, "")
	}
	for _, name := range slices.Sorted(maps.Keys(a.desired.Services)) {
		if d.selector.Matches(a.desired.Services[name].Metadata.Labels) {
			add(serviceKey(name), "service %s: ", name)
		}
	}
	return out
}

// cgroupPeriod is how soon it is seen that a cgroup comes, goes or is another one.
const cgroupPeriod = time.Second

// watchCgroups asks for a reconciliation when a cgroup that modules select has come or gone.
func (a *Agent) watchCgroups(ctx context.Context) {
	tick := time.NewTicker(cgroupPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if a.cgroupsMoved() {
			a.poke()
		}
	}
}

func (a *Agent) cgroupsMoved() bool {
	a.mu.Lock()
	v, paths := a.sockets, map[string]bool{}
	for _, d := range a.modules {
		for _, path := range a.cgroupPaths(d) {
			paths[path] = true
		}
	}
	a.mu.Unlock()
	for path := range paths {
		if v == nil || v.cgroups[path].Exists() {
			continue
		}
		if found, _ := cgroup.Find(path); v.cgroups[path] != found {
			return true
		}
	}
	return false
}

// failsClosed tells whether a module that cannot run keeps packets from passing: by its own policy, or else its package's. One on
// sockets does not: what it did not touch is plain TCP. Where the package cannot be read, what it left in the kernel tells; if
// that is nothing, it might have been a firewall.
func (a *Agent) failsClosed(m v1.Module) bool {
	if p := m.Spec.FailurePolicy; p != "" {
		return p == v1.FailClosed
	}
	if p, err := a.catalog.Get(m.Spec.Package); err == nil {
		return p.FailurePolicy == string(v1.FailClosed)
	}
	state, err := a.dp.Observe()
	if err != nil {
		return true
	}
	for _, c := range state.Chains {
		for _, member := range c.Spec.Members {
			if member.Name == m.Metadata.Name {
				return member.FailClosed
			}
		}
	}
	return true
}
