// SPDX-License-Identifier: Apache-2.0

package oakestra_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// TestEveryOrder posts counter, firewall and proxy in every order, and sends between two services by a virtual address:
// each module processes the packets that the modules before it pass, with the addresses that those have written. The
// redirect of the proxy ends no chain.
func TestEveryOrder(t *testing.T) {
	n := newNode(t)
	register(n)
	a, b := n.container(), n.container()
	a4, _ := a.deploy("client.t.web.t", 0, "")
	b4, _ := b.deploy("server.t.web.t", 0, "")
	const virtual = "10.30.0.1"
	n.Must(http.MethodPost, "/v1/apply", []any{map[string]any{"apiVersion": "kerb.dev/v1alpha1", "kind": "VirtualService",
		"metadata": map[string]any{"name": "web"}, "spec": map[string]any{
			"addresses": []any{map[string]any{"address": virtual}},
			"instances": []any{map[string]any{"name": "0", "addresses": []any{b4}}}}}}, nil)
	client, server := a.listen(a4+":1000"), b.listen(b4+":2000")
	for _, order := range [][]string{{"packetCounter", "firewall", "proxy"}, {"packetCounter", "proxy", "firewall"},
		{"firewall", "packetCounter", "proxy"}, {"firewall", "proxy", "packetCounter"},
		{"proxy", "packetCounter", "firewall"}, {"proxy", "firewall", "packetCounter"}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			o := ordered{node: n, T: t, ids: map[string]int{}, client: client, server: server, order: order, virtual: virtual}
			o.check(a4, b4)
		})
	}
}

// ordered has modules that were posted in an order, and traffic through them.
type ordered struct {
	*testing.T
	node           *node
	order          []string
	ids            map[string]int
	client, server *net.UDPConn
	virtual        string
}

func (o *ordered) check(a4, b4 string) {
	o.node.must("DELETE", "/ebpf", "")
	for _, name := range o.order {
		var got struct{ ID int }
		text := o.node.must("POST", "/ebpf", fmt.Sprintf(`{"name":%q,"config":{}}`, name))
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			o.Fatal(err)
		}
		o.ids[name] = got.ID
	}
	before := func(x, y string) bool { return slices.Index(o.order, x) < slices.Index(o.order, y) }

	// The firewall has no rule yet.
	if !o.isDropped() {
		o.Error("passes a firewall without rules")
	}
	if got := o.counts()["-2"]["egress"]; (got >= fewTries) != before("packetCounter", "firewall") {
		o.Errorf("the counter has seen %d packets of the client, which the firewall drops", got)
	}

	// After the proxy, requests have the address of the server and replies the virtual one. Before it, packets have the
	// former on the server's interface and the latter on the client's, in both directions.
	o.rule(a4, 1000, b4, 2000)
	o.rule(o.virtual, 2000, a4, 1000)
	if before("firewall", "proxy") {
		if !o.isDropped() {
			o.Error("the firewall before the proxy sees what the proxy has made of packets")
		}
		o.rule(a4, 1000, o.virtual, 2000)
		o.rule(b4, 2000, a4, 1000)
	}
	was := o.counts()
	if !o.roundTrip(manyTries) {
		o.Fatal("nothing comes back through all modules")
	}
	now := o.counts()
	for _, end := range []string{"-2", "-3"} {
		for _, direction := range []string{"egress", "ingress"} {
			if now[end][direction] <= was[end][direction] {
				o.Errorf("the counter has missed packets: %s %s was %d, is %d", end, direction, was[end][direction],
					now[end][direction])
			}
		}
	}
}

func (o *ordered) rule(src string, srcPort int, dst string, dstPort int) {
	o.node.must("POST", fmt.Sprintf("/ebpf/%d/rule", o.ids["firewall"]), fmt.Sprintf(
		`{"srcIp":%q,"dstIp":%q,"proto":"UDP","scrPort":%d,"dstPort":%d}`, src, dst, srcPort, dstPort))
}

// counts returns the counter's counts, by the end of an interface's name.
func (o *ordered) counts() map[string]map[string]int {
	var all map[string]map[string]int
	text := o.node.must("GET", fmt.Sprintf("/ebpf/%d/counts", o.ids["packetCounter"]), "")
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		o.Fatal(err)
	}
	return map[string]map[string]int{"-2": o.node.counted(all, "-2"), "-3": o.node.counted(all, "-3")}
}

// roundTrip reports whether one of several packets to the virtual address reaches the server, and its reply the client,
// from the virtual address.
func (o *ordered) roundTrip(tries int) bool {
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(o.virtual), 2000))
	packet := fmt.Appendf(nil, "kerb %d", packetNumber.Add(1))
	for range tries {
		_, _ = o.client.WriteTo(packet, to)
		if from := receive(o.server, packet); from != nil {
			_, _ = o.server.WriteTo(packet, from)
			if back := receive(o.client, packet); back != nil {
				if back.String() != to.String() {
					o.Errorf("the answer comes from %s", back)
				}
				return true
			}
		}
	}
	return false
}

// isDropped reports whether the firewall drops all packets to the virtual address, or the replies to them. It compares
// the drop counter, since under load an undropped packet may also be late.
func (o *ordered) isDropped() bool {
	before := o.drops()
	if o.roundTrip(fewTries) {
		return false
	}
	wait.Until(o.T, "the firewall has dropped all packets", func() bool { return o.drops() >= before+fewTries })
	return true
}

func (o *ordered) drops() (sum uint64) {
	var m v1.Module
	o.node.Must(http.MethodGet, fmt.Sprintf("/v1/modules/oakestra-%d", o.ids["firewall"]), nil, &m)
	for _, d := range m.Status.Drops {
		sum += d.Packets
	}
	return sum
}

// receive returns the sender of a packet, or nil if it does not arrive within a moment.
func receive(c *net.UDPConn, packet []byte) net.Addr {
	buffer := make([]byte, 32)
	_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	for {
		n, from, err := c.ReadFrom(buffer)
		if err != nil {
			return nil
		}
		if bytes.Equal(buffer[:n], packet) {
			return from
		}
	}
}
