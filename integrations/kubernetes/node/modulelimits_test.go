// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// listModules passes a list of Modules to a state as a watch does. It returns the largest number of bytes in memory, by
// estimateBytes.
func listModules(s *state, all []api.Module) (most int) {
	h, listed := s.moduleHandler(ofModules), map[string]api.Module{}
	share, now := h.Share(), 0
	for _, m := range all {
		drop := share(&m)
		listed[m.Metadata.UID] = m
		now += estimateBytes(&m)
		if gone, ok := listed[drop]; ok {
			now -= estimateBytes(&gone)
			delete(listed, drop)
		}
		most = max(most, now)
	}
	var kept []api.Module
	for _, m := range listed {
		kept = append(kept, m)
	}
	h.Replace(kept)
	return most
}

// sized returns a Module with a creation time and a config of a size.
func sized(namespace string, n, created, size int) api.Module {
	m := moduleOf(namespace, fmt.Sprintf("m%03d", n))
	m.Metadata.UID, m.Metadata.Created = fmt.Sprint(namespace, n), fmt.Sprintf("%05d", created)
	m.Spec.Config = map[string]any{"x": json.RawMessage(`"` + strings.Repeat("x", size) + `"`)}
	return m
}

func message(c *api.Condition) string {
	if c == nil {
		return ""
	}
	return c.Reason + " " + c.Message
}

// Of the Modules of a namespace the oldest are kept, regardless of their names, and no namespace exceeds its share of
// the memory, also while they are listed. Omitted Modules are reported, and hold only new pods of their namespace.
func TestModuleLimits(t *testing.T) {
	s := tenants()
	var all []api.Module
	for i := range 330 {
		all = append(all, sized("evil", i, 1000-i, 58<<10))
	}
	all = append(all, sized("shop", 0, 5000, 58<<10))
	check := func(what string, of *namespaceModules, kept int, more bool) {
		t.Helper()
		names := slices.Clone(of.names)
		slices.Sort(names)
		if len(names) != kept || of.bytes > maxNamespaceBytes || of.truncated != more {
			t.Errorf("%s: %d Modules of %d bytes are kept, more: %t", what, len(names), of.bytes, of.truncated)
		}
		for i := 0; more && i < api.MaxModules; i++ {
			if !slices.Contains(names, nodeName(all[329-i])) {
				t.Errorf("%s: number %d by creation is not kept", what, i)
			}
		}
	}
	if most := listModules(s, all); most > 2*maxNamespaceBytes {
		t.Errorf("%d bytes are in memory while they are listed", most)
	}
	check("listed", s.moduleUsage.namespaces["evil"], maxModulesKept, true)
	check("another namespace", s.moduleUsage.namespaces["shop"], 1, false)
	for i := range 330 {
		s.moduleHandler(ofModules).Set(all[i])
	}
	check("changed", s.moduleUsage.namespaces["evil"], maxModulesKept, true)
	if text := message(s.modulesKept()); !strings.HasPrefix(text, "NoRoom 1 namespace ") ||
		!strings.Contains(text, ": evil; delete some") {
		t.Error(text)
	}
	y, v := &syncer{state: s}, s.view()
	theirs, ours := podIn(t, s, v.rules, "evil", "u2"), podIn(t, s, v.rules, "shop", "u1")
	if y.holdOfRejected(v, theirs) != manyModules || y.holdOfRejected(v, ours) != nil {
		t.Error("pods are held by another namespace, or not by their own")
	}
	dir := t.TempDir()
	if err := s.save(dir); err != nil {
		t.Fatal(err)
	}
	next := newState("n1")
	if err := next.restore(dir); err != nil || len(next.modules) != maxModulesKept+1 || !next.view().truncated["evil"] ||
		next.moduleUsage.total != s.moduleUsage.total {
		t.Errorf("%d Modules are restored, %+v: %v", len(next.modules), next.moduleUsage, err)
	}
	if s.modulesNeedRelist() {
		t.Error("a relist is due although none was deleted")
	}
	s.moduleHandler(ofModules).Delete(all[0]) // an omitted one
	if !s.modulesNeedRelist() {
		t.Error("no relist is due")
	}
	all = append(all[320:330:330], all[330])
	listModules(s, all)
	check("fewer", s.moduleUsage.namespaces["evil"], 10, false)
	if text := message(s.modulesKept()); text != "" || s.view().truncated["evil"] {
		t.Error(text)
	}
}

// A Module that is deleted during a list may let an omitted one fit: Modules are listed again.
func TestModuleDeletedWhileListed(t *testing.T) {
	for deleted, again := range []bool{false, true} {
		s := tenants()
		h, all := s.moduleHandler(ofModules), []api.Module{}
		share := h.Share()
		for i := range maxModulesKept + 1 {
			if m := sized("shop", i, i, 0); share(&m) == "" {
				all = append(all, m)
			}
		}
		h.Replace(all[deleted:])
		if !s.view().truncated["shop"] || s.modulesNeedRelist() != again {
			t.Errorf("%d deleted: listed again: %t", deleted, !again)
		}
	}
}

// All namespaces together do not exceed the memory limit. Each has its first Modules, and no Module is displaced by a
// later one, unless it grows.
func TestModuleLimitsOfAllNamespaces(t *testing.T) {
	s := tenants()
	fill := func(prefix string) (all []api.Module) {
		for i := range 40 {
			for n := range api.MaxModules {
				all = append(all, sized(fmt.Sprintf("%s%02d", prefix, i), n, n, 60<<10))
			}
		}
		return all
	}
	all := fill("t")
	if most := listModules(s, all); most > 2*maxModuleBytes+maxModuleBytes/8 {
		t.Errorf("%d bytes are in memory while they are listed", most)
	}
	kept := func() (all []string) {
		for name, m := range s.modules {
			if m.Omitted == 0 {
				all = append(all, name)
			}
		}
		return all
	}
	before := kept()
	for i := range 40 {
		if first := sized(fmt.Sprintf("t%02d", i), 0, 0, 0); !slices.Contains(before, nodeName(first)) {
			t.Errorf("the first Module of namespace %d is not kept", i)
		}
	}
	if s.moduleUsage.total > maxModuleBytes+maxModuleBytes/16 || len(s.modules) != len(all) ||
		len(before) < maxModuleBytes/(64<<10) {
		t.Errorf("%d of %d Modules are kept, %d bytes", len(before), len(s.modules), s.moduleUsage.total)
	}
	if text := message(s.modulesKept()); !strings.Contains(text, "Modules without room (1 MiB in a namespace, 16 MiB in "+
		"all, and then the first 64 KiB of each namespace): t") {
		t.Error(text)
	}
	more := append(fill("a"), all...)
	listModules(s, more)
	for _, name := range before {
		if s.modules[name].Omitted != 0 {
			t.Fatalf("%s is omitted because of later ones", s.modules[name].Metadata.Name)
		}
	}
	if s.moduleUsage.total > 2*maxModuleBytes || s.modulesNeedRelist() {
		t.Errorf("%d bytes are kept, or a relist is due", s.moduleUsage.total)
	}
	small := sized("small", 0, 9999, 3<<10)
	if s.moduleHandler(ofModules).Set(small); s.modules[nodeName(small)].Omitted != 0 {
		t.Error("the first Module of a namespace is omitted because of others")
	}
	last := s.modules[before[0]]
	grown := sized(last.Metadata.Namespace, 0, 0, 63<<10)
	grown.Metadata = last.Metadata
	s.moduleHandler(ofModules).Set(grown)
	is := s.modules[before[0]]
	if _, reason, err := translate(is, nil); is.Omitted == 0 || reason != api.NoRoom || err == nil {
		t.Errorf("a Module that has grown is kept: %v", err)
	}
	for _, m := range all[:300] {
		s.moduleHandler(ofModules).Delete(m)
	}
	if !s.modulesNeedRelist() {
		t.Error("omitted Modules would fit, and no relist is due")
	}
}

// Only the node itself marks a Module as omitted or undecodable; objects cannot claim it. The mark survives a restart.
func TestInternalFields(t *testing.T) {
	var m api.Module
	text := `{"metadata": {"namespace": "shop", "name": "fw"}, "omitted": 1, "tooLarge": true, "undecodable": "x"}`
	if err := json.Unmarshal([]byte(text), &m); err != nil || m.Omitted != 0 || m.TooLarge || m.Undecodable != "" {
		t.Errorf("the object says %+v, %v", m, err)
	}
	s, dir := tenants(), t.TempDir()
	large, omitted, unread := moduleOf("shop", "large"), moduleOf("shop", "omitted"), moduleOf("shop", "unread")
	large.TooLarge, omitted.Omitted, unread.Undecodable = true, 7, "no"
	for _, m := range []api.Module{large, omitted, unread} {
		s.moduleHandler(ofModules).Set(m)
	}
	next := newState("n1")
	if err := errors.Join(s.save(dir), next.restore(dir)); err != nil {
		t.Fatal(err)
	}
	is := next.modules
	if !is[nodeName(large)].TooLarge || is[nodeName(omitted)].Omitted != 7 || is[nodeName(unread)].Undecodable != "no" {
		t.Errorf("after a restart: %+v", is)
	}
}

// Configs of namespaced Modules are kept as text, which is what the agent gets and what is validated: decoded, they may
// take 20 times as much memory.
func TestConfigsAsText(t *testing.T) {
	var m api.Module
	text := `{"metadata":{"namespace":"shop","name":"fw"},"spec":{"package":{"name":"firewall"},"config":{"rules":[` +
		`{"action":"allow","remote":{"set":"all"}}],"defaultPolicy":{"egress":"deny"}}}}`
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	for key, value := range m.Spec.Config {
		if _, ok := value.(json.RawMessage); !ok {
			t.Errorf("%s is a %T", key, value)
		}
	}
	if _, _, err := translate(m, nil); err == nil || !strings.HasPrefix(err.Error(), "spec.config.rules[0].remote: ") {
		t.Errorf("a set of the node may be used: %v", err)
	}
	delete(m.Spec.Config, "rules")
	of, _, err := translate(m, nil)
	out, _ := json.Marshal(of.Spec.Config)
	if err != nil || string(out) != `{"defaultPolicy":{"egress":"deny"}}` {
		t.Errorf("%s, %v", out, err)
	}
}

// Namespaced Modules hold only new pods: labels of running pods may be what a ClusterModule selects. A running pod that
// a rejected Module would select keeps its labels.
func TestModulesAndLabelsOfRunningPods(t *testing.T) {
	refused := func(a *refusing, name string) { a.answers[name] = http.StatusBadRequest }
	for what, c := range map[string]struct {
		change func(*refusing, *state)
		held   bool
	}{
		"many Modules": {change: func(_ *refusing, s *state) {
			for i := range maxModulesKept + 1 {
				s.moduleHandler(ofModules).Set(sized("shop", i, i, 0))
			}
		}},
		"a Module without room": {change: func(_ *refusing, s *state) {
			s.moduleHandler(ofModules).Set(sized("shop", 0, 0, maxNamespaceBytes))
		}},
		"a refused Module": {change: func(a *refusing, s *state) {
			refused(a, names.Module("shop", "bad"))
			s.moduleHandler(ofModules).Set(moduleOf("shop", "bad"))
		}},
		"Modules that change all the time": {change: func(a *refusing, s *state) {
			n := 0
			a.before = func([]v1.Module) {
				n++
				s.moduleHandler(ofModules).Set(sized("shop", 0, 0, n))
			}
			s.moduleHandler(ofModules).Set(sized("shop", 0, 0, 0))
		}},
		"a refused ClusterModule besides a Module": {held: true, change: func(a *refusing, s *state) {
			refused(a, names.Module("shop", "bad"))
			refused(a, "wide")
			s.moduleHandler(ofModules).Set(moduleOf("shop", "bad"))
			s.moduleHandler(ofClusterModules).Set(moduleOf("", "wide"))
		}},
	} {
		for _, pending := range []bool{false, true} {
			a, s := heldPod(t)
			s.state = tenants()
			round := func() {
				t.Helper()
				if _, err := s.round(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if !pending {
				round()
			}
			c.change(a, s.state)
			s.state.podHandler().Set(object("u1", "shop", "web", map[string]string{"quarantine": "true"}))
			round()
			of := a.service.Metadata.Labels
			if names.IsPending(of) != pending || (of["quarantine"] == "true") != (!pending && !c.held) {
				t.Errorf("%s, pending %t: labels %v", what, pending, of)
			}
		}
	}
}
