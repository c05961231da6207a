// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/service"
)

// A service that was looked up ahead is not looked up again by the next change, but by the one after that, and at once
// if it was not complete, is another one now, or was looked up too long ago.
func TestLookAhead(t *testing.T) {
	n := &node{}
	o := n.observer()
	observe := func(netns string) (lookups int, s service.State) {
		t.Helper()
		before := len(n.lookups)
		got, err := o.Observe(Request{Services: map[string]v1.Service{"web": in(netns)}})
		if err != nil {
			t.Fatal(err)
		}
		for _, specs := range n.lookups[before:] {
			lookups += len(specs)
		}
		return lookups, got.Services["web"]
	}
	for name, c := range map[string]struct {
		ahead, now string
		age        time.Duration
		lookups    int
	}{
		"the same":           {"a", "a", 0, 0},
		"another":            {"a", "b", 0, 1},
		"not found":          {"missing", "missing", 0, 1},
		"too long ago":       {"a", "a", aheadAge, 1},
		"not looked up then": {"", "a", 0, 1},
	} {
		if c.ahead != "" {
			o.Prefetch(map[string]v1.ServiceSpec{"web": {Netns: c.ahead}})
		}
		for service, known := range o.ahead {
			known.at = known.at.Add(-c.age)
			o.ahead[service] = known
		}
		if lookups, s := observe(c.now); lookups != c.lookups || len(s.Links) == 0 == (c.now != "missing") {
			t.Errorf("%s: %d lookups, want %d: %+v", name, lookups, c.lookups, s)
		}
		if lookups, _ := observe(c.now); lookups != 1 || len(o.ahead) > 0 {
			t.Errorf("%s: the change after that has %d lookups, want 1; left are %v", name, lookups, o.ahead)
		}
	}
}

// What was known is forgotten by the next lookup ahead, also if too many run. Fewer do when they end.
func TestLookAheadIsBounded(t *testing.T) {
	n := &node{}
	o := n.observer()
	web := map[string]v1.ServiceSpec{"web": {Netns: "a"}}
	o.Prefetch(web)
	if len(o.ahead) != 1 || o.looking != 0 || n.alone != 1 {
		t.Fatalf("%v, %d run, %d lookups without a dump of all links", o.ahead, o.looking, n.alone)
	}
	o.looking = aheadMost
	if o.Prefetch(web); len(n.lookups) != 1 || len(o.ahead) != 0 || o.looking != aheadMost {
		t.Errorf("%d lookups, %v, %d run", len(n.lookups), o.ahead, o.looking)
	}
}

// Which interface has a name is looked up when it is the change's turn: until then another one may have it.
func TestInterfacesAreNotLookedUpAhead(t *testing.T) {
	n := &node{}
	o := n.observer()
	spec := v1.ServiceSpec{Interface: "veth0"}
	o.Prefetch(map[string]v1.ServiceSpec{"web": spec, "db": {Netns: "a"}})
	o.Prefetch(map[string]v1.ServiceSpec{"web": spec})
	if len(n.lookups) != 1 || len(n.lookups[0]) != 1 || len(o.ahead) != 1 || o.looking != 0 {
		t.Errorf("lookups %v; known are %v, %d run", n.lookups, o.ahead, o.looking)
	}
	if _, err := o.Observe(Request{Services: map[string]v1.Service{"web": {Spec: spec}}}); err != nil {
		t.Fatal(err)
	}
	if last := n.lookups[len(n.lookups)-1]; last["web"] != spec {
		t.Errorf("the change looks up %v", last)
	}
}
