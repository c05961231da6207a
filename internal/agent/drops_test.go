// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/resource"
)

// sendDatagrams sends datagrams to a port where no socket is.
func sendDatagrams(t *testing.T, from, to *netlab.Host, port uint16, count int) {
	t.Helper()
	var c *net.UDPConn
	err := from.Do(func() (err error) {
		c, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.Addr4(), port)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range count {
		if _, err := c.Write([]byte("kerb")); err != nil {
			t.Fatal(err)
		}
	}
}

// denyPort is a firewall that drops UDP packets from services to a port, and no others.
func denyPort(name string) v1.Module {
	return module(name, "firewall", "*", map[string]any{
		"defaultPolicy": map[string]any{"ingress": "allow", "egress": "allow"},
		"rules": []map[string]any{{"name": "port", "action": "deny", "direction": "egress", "protocol": "udp",
			"dstPort": 7000}},
		"state": map[string]any{"enabled": false}, // which takes the verifier most of the time
	})
}

// policyDrops are what the API says about the drops of module fw by policy.
func (n *node) policyDrops(t *testing.T) v1.Drop {
	t.Helper()
	m, err := get(t.Context(), n, resource.Module, "fw")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(m.Status.Drops, func(d v1.Drop) bool { return d.Reason == "policy" })
	if i < 0 {
		return v1.Drop{}
	}
	return m.Status.Drops[i]
}

// dropSeries are the series of kerb_service_dropped_packets_total of one service, by module and reason.
func (n *node) dropSeries(t *testing.T, service string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, m := range n.collect(t, "kerb_service_dropped_packets_total") {
		if m.Labels["service"] == service {
			out[m.Labels["module"]+" "+m.Labels["reason"]] = m.Value
		}
	}
	return out
}

// checkWebDrops: all drops by policy are of service web.
func (n *node) checkWebDrops(t *testing.T, packets uint64) {
	t.Helper()
	d := n.policyDrops(t)
	if d.Packets != packets || !slices.Equal(d.Services, []v1.ServiceDrop{{Service: "web", Packets: packets}}) {
		t.Errorf("%d drops by policy, of services %+v, want %d, all of web", d.Packets, d.Services, packets)
	}
	for name, want := range map[string][]v1.ModuleDrop{"web": {{Module: "fw", Reason: "policy", Packets: packets}},
		"db": nil} {
		s, err := get(t.Context(), n, resource.Service, name)
		if err != nil || !slices.Equal(s.Status.Drops, want) {
			t.Errorf("service %s: drops %+v, want %+v (%v)", name, s.Status.Drops, want, err)
		}
	}
	if web := n.dropSeries(t, "web"); len(web) != 1 || web["fw policy"] != float64(packets) {
		t.Errorf("series of web: %v, want %d", web, packets)
	}
	if db := n.dropSeries(t, "db"); len(db) != 0 {
		t.Errorf("series of db: %v", db)
	}
}

// Two services share the module and its program. The drops of one are its own, also after the module is replaced, and
// go with the service.
func TestDropsByService(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), denyPort("fw"))
	sendDatagrams(t, n.web, n.db, 7000, 5)
	n.checkWebDrops(t, 5)

	replaced := denyPort("fw")
	replaced.Spec.Config["rules"].([]map[string]any)[0]["name"] = "renamed"
	n.apply(t, nil, replaced)
	sendDatagrams(t, n.web, n.db, 7000, 3)
	n.checkWebDrops(t, 8)

	n.remove(t, resource.Ref{Kind: v1.KindService, Name: "web"})
	n.apply(t, n.both())
	if d := n.policyDrops(t); d.Packets != 8 || len(d.Services) != 0 {
		t.Errorf("web is registered again: %+v, want 8 packets of no service", d)
	}
}
