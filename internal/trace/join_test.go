// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// seen is a packet at a service, with its fingerprints as it came and after its module.
func seen(service string, at time.Duration, came, left string) v1.TracedPacket {
	p := v1.TracedPacket{Time: time.Unix(1000, 0).Add(at), Service: service, Fingerprint: came,
		Steps: []v1.TraceStep{{Module: "m"}}, Direction: map[string]string{"client": "egress", "far": "ingress"}[service]}
	if left != came {
		p.Steps[0].Fingerprint = left
	}
	return p
}

func TestJoin(t *testing.T) {
	through := seen("wire", 11*time.Millisecond, "outer", "inner")
	through.Then = []v1.TracedPacket{seen("far", 12*time.Millisecond, "inner", "inner")}
	forwarded := func(at time.Duration) v1.TracedPacket { return seen("forward", at, "same", "same") }
	for name, c := range map[string]struct {
		a, b, third []v1.TracedPacket
		want        []string
	}{
		"through a tunnel": {a: []v1.TracedPacket{seen("client", 10*time.Millisecond, "inner", "outer")},
			b: []v1.TracedPacket{through}, want: []string{"a/client b/wire b/far"}},
		"a tunnel that changes the outer packet": {a: []v1.TracedPacket{seen("client", 10*time.Millisecond, "inner", "x")},
			b: []v1.TracedPacket{through}, want: []string{"a/client b/wire b/far"}},
		"of a clock that is late": {a: []v1.TracedPacket{seen("client", 500*time.Millisecond, "inner", "outer")},
			b: []v1.TracedPacket{through}, want: []string{"a/client b/wire b/far"}},
		"of another packet": {a: []v1.TracedPacket{seen("client", 0, "another", "packet")},
			b: []v1.TracedPacket{through}, want: []string{"a/client", "b/wire b/far"}},
		"too far apart": {a: []v1.TracedPacket{seen("client", 2*time.Second, "inner", "outer")},
			b: []v1.TracedPacket{through}, want: []string{"b/wire b/far", "a/client"}},
		"without fingerprints": {a: []v1.TracedPacket{seen("arp", 0, "", "")},
			b: []v1.TracedPacket{seen("arp", 1, "", "")}, want: []string{"a/arp", "b/arp"}},
		"several that agree": {a: []v1.TracedPacket{forwarded(100 * time.Millisecond), forwarded(0)},
			b: []v1.TracedPacket{forwarded(3 * time.Millisecond), forwarded(102 * time.Millisecond),
				forwarded(103 * time.Millisecond)},
			want: []string{"a/forward b/forward", "a/forward b/forward", "b/forward"}},
		"three nodes, of which one has a clock that is late": {a: []v1.TracedPacket{seen("client", 0, "one", "two")},
			b:     []v1.TracedPacket{seen("proxy", 900*time.Millisecond, "two", "three")},
			third: []v1.TracedPacket{seen("server", 2, "three", "three")}, want: []string{"a/client b/proxy c/server"}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for i, p := range Join([]NodeTrace{{"a", c.a}, {"b", c.b}, {"c", c.third}}, time.Second) {
				if want := fmt.Sprintf("0-%d", i+1); p.ID != want {
					t.Errorf("packet %s, want %s", p.ID, want)
				}
				text := p.Node + "/" + p.Service
				for _, then := range p.Then {
					text += " " + then.Node + "/" + then.Service
				}
				got = append(got, text)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
	if through.Node != "" || through.Then[0].Node != "" {
		t.Errorf("joining has changed what was joined: %+v", through)
	}
}

// Long traces of packets that are all alike, as of a client that repeats a request, take no time that grows with its
// square.
func TestJoinManyAlike(t *testing.T) {
	var here, there []v1.TracedPacket
	for i := range 200_000 {
		at := time.Duration(i) * 100 * time.Millisecond
		here = append(here, seen("forward", at, "same", "same"))
		there = append(there, seen("forward", at+30*time.Millisecond, "same", "same"))
	}
	joined, all := make(chan []v1.TracedPacket, 1), []v1.TracedPacket(nil)
	go func() { joined <- Join([]NodeTrace{{"a", here}, {"b", there}}, time.Second) }()
	select {
	case all = <-joined:
	case <-time.After(wait.Patience):
		t.Fatal("still joining")
	}
	for i, p := range all {
		if len(p.Then) != 1 || p.Then[0].Time.Sub(p.Time) != 30*time.Millisecond {
			t.Fatalf("packet %d of %d: %+v", i, len(all), p)
		}
	}
	if len(all) != len(here) {
		t.Errorf("%d packets, want %d", len(all), len(here))
	}
}
