// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	kerbnode "github.com/kerb-edge/kerb/internal/lab/node"
)

// A firewall behind the proxy of a client processes translated packets to instances of this node, with their addresses,
// also on the short path: packets that it denies reach no instance, all others do. As replies have the virtual address,
// there is a warning if it tracks connections.
func TestFirewallBehindProxy(t *testing.T) {
	n, client, servers := newMesh(t, "", nil)
	spec := meshSpec(servers, v1.PolicyRoundRobin)
	spec.Instances = spec.Instances[:2]
	spec.Addresses = append(spec.Addresses[2:], v1.VirtualAddress{Address: "10.30.1.0", Instance: servers[0].Name()})
	n.Apply(virtualService("web", spec), kerbnode.Service(client, "app=mesh", "role=client"))
	n.synced("web")
	fw := kerbnode.Module("fw", "firewall", "role=client", map[string]any{
		"defaultPolicy": map[string]any{"ingress": "allow", "egress": "allow"},
		"rules": []any{map[string]any{"action": "deny", "direction": "egress", "protocol": "udp",
			"dst": servers[1].Addr4().String(), "dstPort": targetPort}}})
	fw.Spec.Order.After = []string{"px"}
	var result v1.ApplyResult
	n.Must("PUT", "/v1/modules/fw", fw, &result)
	if text := strings.Join(result.Warnings, "\n"); !strings.Contains(text, "drops the replies of instance web/web") {
		t.Errorf("with connection tracking the warnings are: %s", text)
	}
	fw.Spec.Config["state"], result = map[string]any{"enabled": false}, v1.ApplyResult{}
	n.Must("PUT", "/v1/modules/fw", fw, &result)
	if text := strings.Join(result.Warnings, "\n"); strings.Contains(text, "does not see") ||
		strings.Contains(text, "drops the replies") {
		t.Errorf("warnings: %s", text)
	}
	for i, path := range []string{"peer", "peer"} {
		if got := n.indices()[i]; got.Path != path {
			t.Errorf("packets to %s take the path %s, want %s", got.Name, got.Path, path)
		}
	}
	c, err := dialTCP(client, netip.MustParseAddrPort("10.30.1.0:80"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.exchange("hello"); err != nil || c.server != servers[0].Name() {
		t.Errorf("%s: %v", c.server, err)
	}
	u, err := dialUDP(client, netip.MustParseAddrPort("10.30.1.1:80"))
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for range 3 { // of a new session, of a known one, and of one that is cached on the CPU
		if _, err := u.Write([]byte("denied")); err != nil {
			t.Fatal(err)
		}
	}
	n.Eventually("the firewall drops the packets", func() bool {
		var m v1.Module
		n.Must("GET", "/v1/modules/fw", nil, &m)
		for _, d := range m.Status.Drops {
			if d.Reason == "policy" && d.Packets == 3 {
				return true
			}
		}
		return false
	})
}
