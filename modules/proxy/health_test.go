// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// healthFixture is a data plane and its control plane, with a virtual service with a port.
type healthFixture struct {
	*chooser
	vs sdk.VirtualService
}

func newHealthFixture(t *testing.T, n int, config string) *healthFixture {
	t.Helper()
	data := loadConfigured(t, config)
	c := &healthFixture{chooser: &chooser{testControl: newTestControlOn(t, config, data.maps), data: data, port: 1024},
		vs: webService(n, v1alpha1.PolicyRoundRobin)}
	c.vs.Spec.Ports = []v1alpha1.VirtualPort{{Port: 80}}
	c.testControl.put(c.vs)
	return c
}

// connect opens connections. Healthy instances answer; unhealthy ones refuse them, or do not answer the SYN and its
// retransmission.
func (c *healthFixture) connect(n int, sick map[string]string) {
	c.t.Helper()
	for range n {
		c.port++
		syn := tcp(clientsOf[0], c.port, "10.30.0.1", 80, tcpSYN)
		c.data.out(syn.bytes())
		key, s := c.session(c.port)
		answer := tcp(s.Addr.addr().String(), 80, clientsOf[0], c.port, tcpSYN|tcpACK)
		switch sick[c.nameOf(s.Instance)] {
		case "refuses":
			answer.flags = tcpRST | tcpACK
		case "silent":
			s.Seen -= uint64(time.Second) // as if the client had waited
			c.data.put(mapPending, key, s)
			c.data.out(syn.bytes())
			continue
		}
		c.data.in(answer.bytes())
	}
}

func (c *healthFixture) session(port uint16) (flow, session) {
	c.t.Helper()
	for k, s := range c.data.table() {
		if s.Flags&sessionReverse == 0 && k.SPort == portOf(port) {
			return k, s
		}
	}
	c.t.Fatalf("no session from port %d", port)
	return flow{}, session{}
}

func (c *healthFixture) look(after time.Duration) {
	c.t.Helper()
	c.now = c.now.Add(after)
	if err := c.w.ejectFailing(c.now); err != nil {
		c.t.Fatal(err)
	}
}

func (c *healthFixture) takesPart(name string) bool {
	return slices.Contains(c.served("10.30.0.1"), name)
}

func (c *healthFixture) condition(kind string) sdk.Condition {
	c.t.Helper()
	all, err := c.w.Conditions()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, one := range all {
		if one.Type == kind {
			return one
		}
	}
	c.t.Fatalf("no condition %s in %v", kind, all)
	return sdk.Condition{}
}

// An instance that refuses connections, or does not answer, is ejected for a while, twice as long if it fails again. It
// is restored when it has accepted a connection.
func TestFailingInstanceIsEjected(t *testing.T) {
	for _, how := range []string{"refuses", "silent"} {
		t.Run(how, func(t *testing.T) {
			c := newHealthFixture(t, 3, "")
			sick := map[string]string{"web-1": how}
			c.look(time.Second)
			c.connect(12, sick) // four each
			c.look(time.Second)
			if !c.takesPart("web-1") {
				t.Fatal("ejected too early")
			}
			c.connect(3, sick)
			c.look(time.Second)
			if c.takesPart("web-1") || c.condition("InstancesHealthy").Status != "False" {
				t.Fatalf("not ejected: %+v", c.condition("InstancesHealthy"))
			}
			if got := c.shares(8, clientsOf[0]); got["web-1"] != 0 || got["web-0"] != 4 {
				t.Errorf("new connections go to %v", got)
			}
			var all []InstanceReport
			c.get("/instances", &all)
			if all[1].State != "ejected" || !strings.Contains(all[1].Ejected, "5 connects failed in a row") ||
				all[1].Failures != 5 {
				t.Errorf("%+v", all[1])
			}
			c.look(29 * time.Second)
			if c.takesPart("web-1") {
				t.Error("returned too early")
			}
			c.look(2 * time.Second)
			if !c.takesPart("web-1") {
				t.Fatal("not returned")
			}
			c.connect(15, sick)
			c.look(time.Second)
			c.look(45 * time.Second)
			if c.takesPart("web-1") {
				t.Error("the second time is no longer than the first")
			}
			c.look(20 * time.Second)
			c.connect(3, nil)
			c.look(time.Second)
			c.connect(15, sick)
			c.look(time.Second)
			c.look(31 * time.Second)
			if !c.takesPart("web-1") {
				t.Error("a connection that succeeded does not count")
			}
		})
	}
}

// At most half of the instances are ejected, and never the last one. Failures are ignored if any port is served, or if
// connections succeed.
func TestMostInstancesStay(t *testing.T) {
	all := map[string]string{"web-0": "refuses", "web-1": "refuses", "web-2": "refuses", "web-3": "refuses"}
	for _, tc := range []struct {
		name, config string
		instances    int
		left         int
		edit         func(*sdk.VirtualService)
	}{
		{"half", "", 4, 2, nil},
		{"one", "", 1, 1, nil},
		{"all but the last", `{"passiveHealth": {"maxEjected": 100}}`, 4, 1, nil},
		{"off", `{"passiveHealth": {"failures": 0}}`, 4, 4, nil},
		{"any port", "", 4, 4, func(vs *sdk.VirtualService) { vs.Spec.Ports = nil }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := newHealthFixture(t, tc.instances, tc.config)
			if tc.edit != nil {
				tc.edit(&c.vs)
				c.testControl.put(c.vs)
			}
			c.connect(40, all)
			c.look(time.Second)
			if got := len(c.served("10.30.0.1")); got != tc.left {
				t.Errorf("%d instances take part, want %d", got, tc.left)
			}
		})
	}
	c := newHealthFixture(t, 2, "")
	c.connect(40, map[string]string{"web-1": "refuses"})
	c.connect(4, nil)
	c.look(time.Second)
	if !c.takesPart("web-1") {
		t.Error("ejected although it accepts connections")
	}
}

// Live sessions over the quota of their interface are a condition, with the remedy.
func TestCrowdedSessionsAreACondition(t *testing.T) {
	w := newWorldOn(loadConfigured(t, `{"tables": {"sessions": 128}}`), true)
	p := newTestControlOn(t, `{"tables": {"sessions": 128}}`, w.maps)
	p.changed(localInstance("client", testIfindex, "10.18.0.2/24"), true)
	condition := func() sdk.Condition {
		p.sweep()
		all, err := p.w.Conditions()
		if err != nil {
			t.Fatal(err)
		}
		return all[0]
	}
	for i := range uint16(60) {
		w.out(udp(w.client, 1000+i, w.farVIP, 53).bytes())
		w.in(udp(w.far, 53, w.client, 1000+i).bytes())
	}
	p.same("with room", condition(), sdk.Condition{Type: "SessionsKept", Status: "True", Reason: "BelowLimit"})
	p.w.maps.shares[0].addSessions(60)
	for i := range uint16(10) {
		w.out(udp(w.client, 2000+i, w.farVIP, 53).bytes())
		w.in(udp(w.far, 53, w.client, 2000+i).bytes())
	}
	got := condition()
	if got.Status != "False" || got.Reason != "OverQuota" ||
		!strings.Contains(got.Message, "live sessions of service client may be evicted") {
		t.Errorf("%+v", got)
	}
}
