// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/service"
)

// node is a watcher that knows some services and interfaces, and counts what is looked up besides.
type node struct {
	states     map[string]service.State
	interfaces map[string]service.Link
	lookups    []map[string]v1.ServiceSpec
	alone      int // of the lookups, without a dump of all links
	err        error
}

func (n *node) States() map[string]service.State        { return n.states }
func (n *node) HostInterfaces() map[string]service.Link { return n.interfaces }

func (n *node) Merge(states map[string]service.State) map[int]string {
	owners := map[int]string{}
	for name, s := range states {
		for _, l := range s.Links {
			owners[l.Ifindex] = name
		}
	}
	return owners
}

// resolve finds everything but services and interfaces that are called missing.
func (n *node) resolve(specs map[string]v1.ServiceSpec) (map[string]service.State, error) {
	n.lookups = append(n.lookups, specs)
	out := map[string]service.State{}
	for name, spec := range specs {
		if spec.Netns == "missing" || spec.Interface == "missing" {
			out[name] = service.State{Err: errors.New("missing")}
		} else {
			out[name] = state(30 + len(out))
		}
	}
	return out, n.err
}

func (n *node) observer() *Observer {
	return &Observer{Watcher: n, Binder: n, Resolve: n.resolve, ResolveAlone: n.resolveAlone}
}

func (n *node) resolveAlone(specs map[string]v1.ServiceSpec) (map[string]service.State, error) {
	n.alone++
	return n.resolve(specs)
}

func state(ifindex int) service.State {
	return service.State{Links: []service.Link{{Ifindex: ifindex}}}
}

func in(netns string) v1.Service { return v1.Service{Spec: v1.ServiceSpec{Netns: netns}} }

func onInterfaces(names ...string) v1.Module {
	return v1.Module{Spec: v1.ModuleSpec{Attach: v1.Attach{Interfaces: names}}}
}

// What the watcher knows, and what the change before has found, is not looked up; everything else is, at once.
func TestObserveLooksUpOnce(t *testing.T) {
	n := &node{states: map[string]service.State{"known": state(1), "moved": state(2)},
		interfaces: map[string]service.Link{"eth0": {Name: "eth0", Ifindex: 9}}}
	before := map[string]v1.Service{"known": in("a"), "moved": in("b"), "late": in("c"), "late and left": in("e"),
		"just found": in("f"), "found earlier": in("g")}
	left := state(4)
	left.Links[0].Left = true
	o := n.observer()
	o.found = map[string]time.Time{"just found": time.Now(), "found earlier": time.Now().Add(-lastAge)}
	s, err := o.Observe(Request{
		Services: map[string]v1.Service{"known": in("a"), "moved": in("b2"), "late": in("c"), "new": in("d"),
			"found earlier": in("g"), "lost": in("missing"), "late and left": in("e"), "just found": in("f")},
		Before: before,
		Last: map[string]service.State{"known": state(5), "moved": state(5), "late": {}, "late and left": left,
			"just found": state(6), "found earlier": state(7)},
		Modules: map[string]v1.Module{"fw": onInterfaces("eth0", "tun0"), "px": onInterfaces("missing", "tun0")},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]v1.ServiceSpec{"moved": {Netns: "b2"}, "late": {Netns: "c"}, "new": {Netns: "d"},
		"lost": {Netns: "missing"}, "late and left": {Netns: "e"}, "found earlier": {Netns: "g"},
		"interface tun0": {Interface: "tun0"}, "interface missing": {Interface: "missing"}}
	if diff := cmp.Diff([]map[string]v1.ServiceSpec{want}, n.lookups); diff != "" {
		t.Errorf("lookups, want (-), got (+):\n%s", diff)
	}
	slices.Sort(s.New)
	if diff := cmp.Diff([]string{"lost", "moved", "new"}, s.New); diff != "" {
		t.Errorf("new services, want (-), got (+):\n%s", diff)
	}
	if _, ok := s.Interfaces["missing"]; ok || s.Interfaces["eth0"].Ifindex != 9 || s.Interfaces["tun0"].Ifindex < 30 ||
		len(s.Services) != 8 || o.isRecent("known") || !o.isRecent("new") || s.Services["just found"].Links[0].Ifindex != 6 {
		t.Errorf("interfaces %v, services %v", s.Interfaces, s.Services)
	}
	if s.Services["known"].Links[0].Ifindex != 1 || s.Services["moved"].Links[0].Ifindex < 30 ||
		s.Services["lost"].Err == nil || s.Owners[1] != "known" {
		t.Errorf("services %v, owners %v", s.Services, s.Owners)
	}
}

func TestObserveFails(t *testing.T) {
	n := &node{err: errors.New("no netlink")}
	if _, err := n.observer().Observe(Request{}); !errors.Is(err, n.err) {
		t.Errorf("%v, want %v", err, n.err)
	}
}

// Missing cgroups and services that were not found are distinguished from existing ones.
func TestFindSockets(t *testing.T) {
	n := &node{}
	all, err := service.ParseSelector("*")
	if err != nil {
		t.Fatal(err)
	}
	s := Snapshot{Services: map[string]service.State{"lost": {Err: errors.New("missing")}, "web": state(1)}}
	n.observer().FindSockets(&s, map[string]v1.Service{"lost": in("missing"), "web": in("/does/not/exist")},
		[]Selection{{Cgroups: []string{"/kerb-test-not-there"}, Services: all}})
	v := s.Sockets
	if v.Errs["/kerb-test-not-there"] == nil || v.Errs[ServiceKey("web")] == nil || v.Errs[ServiceKey("lost")] != nil {
		t.Errorf("errors: %v", v.Errs)
	}
	if len(v.Cgroups) != 0 || v.Cookies["web"] != 0 {
		t.Errorf("cgroups %v, cookies %v", v.Cgroups, v.Cookies)
	}
}

// Only modules on sockets have all mounts of the node read, to find out whether their cgroups are seen.
func TestViewIsCheckedForSockets(t *testing.T) {
	before, checks := checkView, 0
	checkView = func() error { checks++; return cgroup.ErrOwnOnly }
	t.Cleanup(func() { checkView = before })
	for _, modules := range [][]Selection{nil, {{}}} {
		s := Snapshot{}
		(&node{}).observer().FindSockets(&s, nil, modules)
		if checks != len(modules) || errors.Is(s.Sockets.View, cgroup.ErrOwnOnly) != (len(modules) > 0) {
			t.Errorf("%d modules: %d checks, view %v", len(modules), checks, s.Sockets.View)
		}
	}
}
