// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
)

// Three times as many short connections as the table's size: each finds room, and none remains as open.
func TestManyShortConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	notEmulated(t)
	w := newWorld(t, true)
	const connections = 3 * 65_536
	client := netip.MustParseAddr("10.20.0.1")
	p := tcp("10.20.0.1", 0, w.farVIP, 80, 0)
	for i := range connections {
		if i%60000 == 0 {
			client = client.Next()
		}
		p.src, p.sport = client, uint16(1024+i%60000)
		p.flags = tcpSYN
		if got := w.out(p.bytes()); got.action != tcNext {
			t.Fatalf("connection %d: action %d", i, got.action)
		}
		w.in(tcp(w.far, 80, client.String(), p.sport, tcpSYN|tcpACK).bytes())
		p.flags = tcpRST
		w.out(p.bytes())
	}
	var stats instanceStats
	if err := w.maps[mapInstanceStats].Lookup(w.farI, &stats); err != nil {
		t.Fatal(err)
	}
	if stats.Sessions != 0 || stats.Opened != connections {
		t.Errorf("%d sessions open of %d", stats.Sessions, stats.Opened)
	}
	if full := w.count(countTableFull); full != 0 {
		t.Errorf("no room for %d", full)
	}
	for _, s := range w.table() {
		if s.State&stateClosed == 0 {
			t.Fatalf("left open: %+v", s)
		}
	}
	if err := w.maps[mapSessions].NextKey(nil, new(flow)); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("a closed session is among the live ones: %v", err)
	}
}
