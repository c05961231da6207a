// SPDX-License-Identifier: Apache-2.0

package combinations

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	kerbnode "github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// A module behind the tunnel processes encapsulated packets as they leave: with the addresses of the nodes and the
// tunnel's port. Packets that it denies do not leave, all others do.
func TestFirewallBehindTunnel(t *testing.T) {
	f := newField(t)
	f.deploy([]string{"tunnel"})
	c := &combination{field: f, packages: []string{"tunnel", "firewall"}}
	fw := kerbnode.Module("firewall", "firewall", "*", nil)
	fw.Spec.Order.After = []string{"tunnel"}
	outer := map[string]any{"name": "outer", "direction": "egress", "protocol": "udp",
		"dst": f.wire.Addr4(f.nodes[1].Lab).String(), "dstPort": 7187}
	put := func(action string) {
		t.Helper()
		outer["action"] = action
		fw.Spec.Config = map[string]any{"state": map[string]any{"enabled": false},
			"defaultPolicy": map[string]any{"ingress": "allow", "egress": "allow"}, "rules": []any{outer}}
		var result v1.ApplyResult
		f.nodes[0].Must(http.MethodPut, "/v1/modules/firewall", fw, &result)
		if text := strings.Join(result.Warnings, "\n"); strings.Contains(text, "does not see") {
			t.Errorf("warnings: %s", text)
		}
	}
	put("allow")
	for _, s := range f.servers {
		for _, addr := range s.addresses(false) {
			c.checkReply(netip.AddrPortFrom(addr, livePort))
			c.checkStream(netip.AddrPortFrom(addr, livePort))
		}
	}
	put("deny")
	for _, addr := range f.servers[0].addresses(false) { // on the same node: not encapsulated
		c.checkReply(netip.AddrPortFrom(addr, livePort))
	}
	for _, addr := range f.servers[1].addresses(false) {
		conn, drops := c.dial("udp", netip.AddrPortFrom(addr, livePort)), c.drops(0)
		defer conn.Close()
		if _, err := conn.Write([]byte("denied")); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "the firewall denies the outer packet", func() bool { return c.drops(0) > drops })
		_ = conn.SetReadDeadline(time.Now())
		if n, err := conn.Read(make([]byte, 64)); err == nil {
			t.Errorf("%v: %d bytes; want no reply", addr, n)
		}
	}
}
