// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"
	"testing"
)

// Six times as many short connections as a table has room for go through it: each finds room, none is left behind as open, and
// the last ones are still known.
func TestManyShortConnections(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	notEmulated(t)
	w := newWorld(t, true)
	const connections = 6 * 65_536
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
	entries, lost := w.table(), 0
	for i := range 10000 {
		f := flow{Src: addressOf(client), Dst: addressOf(addr(w.farVIP)), SPort: portOf(uint16(1024 + (connections-1-i)%60000)), DPort: portOf(80), Ifindex: testIfindex, Proto: protoTCP}
		if _, ok := entries[f]; !ok {
			lost++
		}
	}
	if lost > 0 || len(entries) > 131072 {
		t.Errorf("%d of the last 10000 are lost, %d entries", lost, len(entries))
	}
}
