// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/watch"
)

// An answer of any size becomes a virtual service that fits an update of control planes.
func TestHugeAnswer(t *testing.T) {
	r := tableResult{App: "a.b"}
	for n := range maxInstances + 10 {
		i := tableInstance{Number: n, Address: "10.18.0.1", AddressV6: "fd00:1234:5678:9abc:def0:1234:5678:9abc",
			Host: "2001:db8:1234:5678:9abc:def0:1234:5678"}
		for k := range 20 {
			v6 := netip.AddrFrom16([16]byte{0xfd, 0xff, 14: byte(k), 8: byte(n >> 8), 9: byte(n), 10: 0x12, 11: 0x34,
				12: 0x56, 13: 0x78})
			i.ServiceIPs = append(i.ServiceIPs, tableServiceIP{Type: "instance_ip", AddressV6: v6.String()})
		}
		r.Instances = append(r.Instances, i)
	}
	s := translation{ranges: []netip.Prefix{netip.MustParsePrefix("fdff::/21")}}.spec(r)
	data, err := json.Marshal(s)
	if err != nil || len(data) > watch.MaxBytes {
		t.Errorf("%d bytes (%v), want at most %d", len(data), err, watch.MaxBytes)
	}
	if len(s.Instances) != maxInstances || len(s.Addresses) < maxInstances {
		t.Errorf("%d instances, %d addresses", len(s.Instances), len(s.Addresses))
	}
}

// An answer's name goes into topics and into the name of a virtual service.
func TestNamesInAnswers(t *testing.T) {
	longest := strings.Repeat("a", 201)
	for name, good := range map[string]bool{"": true, "app.ns.web.ns": true, longest: true, longest + "a": false,
		"a/b": false, "#": false, ".a": false} {
		if r, err := decodeResult([]byte(`{"app_name":"` + name + `"}`)); (err == nil) != good || good && r.App != name {
			t.Errorf("name %q: %q, %v", name, r.App, err)
		}
	}
}

// What is no host is no node.
func TestNodesThatAreNone(t *testing.T) {
	own := map[netip.Addr]bool{netip.MustParseAddr("192.0.2.5"): true}
	for host, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", "[2001:db8::1]": "2001:db8::1", "::ffff:192.0.2.1": "192.0.2.1", "192.0.2.5": "", "": "",
		"node-1":  "",
		"0.0.0.0": "", "::": "", "224.0.0.1": "", "ff02::1": "", "127.0.0.1": "", "255.255.255.255": "", "fe80::1%eth0": "",
	} {
		if got := (translation{own: own}).node(host); got != want {
			t.Errorf("host %q is node %q, want %q", host, got, want)
		}
	}
}
