// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// explain runs kerb explain for a packet, and returns the lines of its output.
func (n *node) explain(packet string, args ...string) (lines []string) {
	n.T.Helper()
	out := bufio.NewScanner(strings.NewReader(n.must("explain", append([]string{"packet", packet}, args...)...)))
	for out.Scan() {
		lines = append(lines, out.Text())
	}
	return lines
}

// checkExplain checks the last line, and words of all lines.
func (n *node) checkExplain(packet, service, end string, words ...string) {
	n.T.Helper()
	lines := n.explain(packet, "--service", service)
	if last := lines[len(lines)-1]; last != "the packet "+end {
		n.T.Errorf("%s: %q, want %q; %v", packet, last, end, lines)
	}
	for _, w := range words {
		if !strings.Contains(strings.Join(lines, "\n"), w) {
			n.T.Errorf("%s: no %q in %v", packet, w, lines)
		}
	}
}

// An explained packet has the result of a real one: rules of each direction, existing connections and virtual
// addresses.
func TestExplainPacket(t *testing.T) {
	n := newRunningNode(t)
	rules := []any{map[string]any{"action": "allow", "direction": "ingress", "protocol": "tcp", "dstPort": 80},
		map[string]any{"action": "allow", "direction": "ingress", "protocol": "icmp", "icmpType": 8}}
	virtual := netip.MustParseAddr("10.30.0.9")
	n.apply(module("fw", "firewall", "*", map[string]any{"rules": rules}), module("px", "proxy", "app=web", nil),
		v1.VirtualService{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindVirtualService},
			Metadata: v1.ObjectMeta{Name: "store"}, Spec: v1.VirtualServiceSpec{
				Addresses: []v1.VirtualAddress{{Address: virtual.String()}},
				Instances: []v1.VirtualInstance{{Name: "db", Addresses: []string{n.db.Addr4().String()}}}}})
	n.settled(map[string]int{"fw": 4, "px": 2})
	web, db, out := n.web.Addr4(), n.db.Addr4(), "198.51.100.7"
	to := func(proto string, port int) string { return fmt.Sprintf("%s %s:40000 > %s:%d", proto, out, db, port) }
	n.checkExplain(to("tcp", 80), "db", "passes", "db ingress", "[S]", "fw:next")
	n.checkExplain(to("tcp", 81), "db", "is dropped by fw (policy)", "fw:drop (policy)")
	n.checkExplain(to("udp", 80), "db", "is dropped by fw (policy)")
	n.checkExplain(fmt.Sprintf("icmp %s > %s", out, db), "db", "passes", "type 8 code 0")
	n.checkExplain(fmt.Sprintf("icmp %s > %s type 13", out, db), "db", "is dropped by fw (policy)")
	n.checkExplain(fmt.Sprintf("tcp [2001:db8::7]:4000 > [%s]:80", n.db.Addr6()), "db", "passes")

	// from one service to another, by a virtual address: the firewalls of both apply
	by := func(port int) string { return fmt.Sprintf("tcp %s:40000 > %s:%d syn", web, virtual, port) }
	n.checkExplain(by(80), "web", "passes", "web egress", fmt.Sprintf("> %s:80", db), "db ingress")
	n.checkExplain(by(81), "web", "is dropped by fw (policy)", fmt.Sprintf("> %s:81", db), "db ingress")

	// an existing connection
	var server net.Listener
	if err := n.db.Do(func() (err error) {
		server, err = net.Listen("tcp4", netip.AddrPortFrom(db, 80).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	var c net.Conn
	if err := n.web.Do(func() (err error) {
		c, err = net.Dial("tcp4", netip.AddrPortFrom(db, 80).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// its firewalls know its sequence numbers, and pass those of the other end
	reply := fmt.Sprintf("tcp %s > ", server.Addr())
	n.checkExplain(reply+c.LocalAddr().String()+" rst", "web", "is dropped by fw (invalid_state)", "px:next")
	n.checkExplain(reply+netip.AddrPortFrom(web, 9).String()+" ack", "web", "is dropped by fw (policy)")
	n.checkExplain(fmt.Sprintf("tcp %s > %s ack", c.LocalAddr(), server.Addr()), "db", "is dropped by fw (invalid_state)")
	n.checkExplain(fmt.Sprintf("tcp %s:39999 > %s ack", web, server.Addr()), "db", "passes")
	if drops := n.must("module", "drops"); strings.Contains(drops, "invalid_state") {
		t.Errorf("the node noticed: %s", drops)
	}

	n.refused(n.kerb("explain", "packet", "udp 192.0.2.1:1 > 192.0.2.2:2", "--service", "db"), 2,
		"neither end is an address", db.String())
	n.refused(n.kerb("explain", "packet", to("tcp", 80), "--service", "dbb"), 3, "dbb")
	if lines := n.explain("udp 192.0.2.1:1 > 192.0.2.2:2", "--service", "db", "--direction", "ingress"); len(lines) != 2 {
		t.Errorf("with a direction: %v", lines)
	}
}
