// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/http"
	"net/netip"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Connections continue when the table of sessions is replaced: here by one of another size, in an upgrade by one of
// another kind.
func TestTableIsReplaced(t *testing.T) {
	n, client, servers := newMesh(t, "", nil)
	n.Apply(virtualService("web", meshSpec(servers, v1.PolicyRoundRobin)))
	n.synced("web")
	var all []*connection
	for range 6 {
		c, err := dialTCP(client, netip.AddrPortFrom(virtual4, port))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		all = append(all, c)
	}
	for _, sessions := range []int{2048, 1024} {
		n.Apply(proxyModule(map[string]any{"tables": map[string]any{"sessions": sessions}}))
		var stats struct {
			Tables map[string]struct{ Capacity int }
		}
		n.Eventually("the module has the other table", func() bool {
			n.Must(http.MethodGet, "/v1/modules/px/stats", nil, &stats)
			return stats.Tables["sessions"].Capacity == sessions
		})
		for _, c := range all {
			if err := c.exchange("hello"); err != nil {
				t.Fatalf("with %d sessions: %v", sessions, err)
			}
		}
	}
}
