// SPDX-License-Identifier: Apache-2.0

package combinations

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/intercept"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/modules/accelerator"
	"github.com/kerb-edge/kerb/modules/tunnel"
)

var builtins = []string{"accelerator", "classifier", "counter", "firewall", "flows", "intercept", "nat", "proxy",
	"responder", "tunnel"}

// All of the built-in modules together, and with KERB_COMBINATIONS=1 also every two and every three, in the default
// order, on a client and servers on its own node and on another one: each connection works, by each address, in both
// families, and each module does only its own work.
func TestCombinations(t *testing.T) {
	f := newField(t)
	f.addOutside()
	var sizes []int
	if os.Getenv("KERB_COMBINATIONS") != "" {
		sizes = []int{2, 3}
	}
	for _, packages := range append(subsets(builtins, sizes...), builtins) {
		t.Run(strings.Join(packages, "+"), func(t *testing.T) {
			outer := f.t
			f.t = t
			defer func() { f.t = outer }()
			c := f.combine(packages)
			for _, s := range f.servers {
				for _, addr := range s.addresses(c.has("proxy")) {
					c.checkServer(s, addr)
				}
			}
			if c.has("nat") {
				c.checkTranslation()
			}
			c.finish()
		})
	}
}

// subsets returns the subsets of the given sizes.
func subsets(of []string, sizes ...int) (out [][]string) {
	for bits := range 1 << len(of) {
		var set []string
		for i, name := range of {
			if bits>>i&1 == 1 {
				set = append(set, name)
			}
		}
		if slices.Contains(sizes, len(set)) {
			out = append(out, set)
		}
	}
	return out
}

// combination is a set of deployed modules.
type combination struct {
	*field
	packages  []string
	receivers [2]*intercept.Receiver // by node
	before    [2]map[string]uint64   // packets per module that has chains, by node
	carried   uint64                 // packets by the tunnel
	moved     uint64                 // bytes by the accelerator, of the client's node
}

func (c *combination) has(pkg string) bool { return slices.Contains(c.packages, pkg) }

func (f *field) combine(packages []string) *combination {
	f.t.Helper()
	f.deploy(packages)
	c := &combination{field: f, packages: packages}
	if c.has("intercept") {
		for i, n := range f.nodes {
			n.Eventually("intercept serves programs", func() (ok bool) {
				var err error
				c.receivers[i], err = intercept.Open(filepath.Join(n.Run, "modules", "intercept.sock"), "taken",
					intercept.Options{KeepPriority: true})
				return err == nil
			})
			f.t.Cleanup(func() { c.receivers[i].Close() })
		}
	}
	if c.has("accelerator") {
		f.nodes[0].Eventually("the accelerator answers", func() bool {
			return f.nodes[0].Get("/v1/modules/accelerator/pairs", nil) == nil
		})
		c.moved = c.redirected()
	}
	for i, n := range f.nodes {
		c.before[i] = counts(n)
	}
	if c.has("tunnel") {
		c.carried = c.sent()
	}
	return c
}

// checkServer tests all traffic between the client and a server by one address.
func (c *combination) checkServer(s *server, addr netip.Addr) {
	c.t.Helper()
	c.checkReply(netip.AddrPortFrom(addr, livePort))
	c.checkStream(netip.AddrPortFrom(addr, livePort))
	if c.has("firewall") {
		c.checkDenied(s, netip.AddrPortFrom(addr, deniedPort))
	} else {
		c.checkReply(netip.AddrPortFrom(addr, deniedPort))
	}
	// Kernels do not let the tunnel send back in the other IP version what came over a veth (docs/tunnel.md: nested).
	if c.has("responder") && !(c.has("tunnel") && s.node == 1 && addr.Is6()) {
		c.checkReply(netip.AddrPortFrom(addr, echoPort))
		if c.has("firewall") {
			c.checkDenied(s, netip.AddrPortFrom(addr, echoDenied))
		}
	}
	if c.has("intercept") {
		c.checkDelivered(s, netip.AddrPortFrom(addr, deliverPort))
		if c.has("firewall") {
			c.checkDenied(s, netip.AddrPortFrom(addr, deliverDenied))
		}
	}
}

func (c *combination) dial(network string, to netip.AddrPort) net.Conn {
	c.t.Helper()
	var conn net.Conn
	err := c.client.Do(func() (err error) {
		conn, err = (&net.Dialer{Timeout: nodetest.Patience}).Dial(network, to.String())
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return conn
}

// checkReply sends a datagram until its reply arrives: the first ones may reach a node that does not know its services
// yet.
func (c *combination) checkReply(to netip.AddrPort) {
	c.t.Helper()
	conn, data := c.dial("udp", to), make([]byte, 64)
	defer conn.Close()
	for end := time.Now().Add(nodetest.Patience); ; {
		_, _ = conn.Write([]byte("question"))
		_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		n, err := conn.Read(data)
		if err == nil && string(data[:n]) == "question" {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("%v: %q, %v", to, data[:n], err)
		}
	}
}

// checkStream sends messages, and more than fits into one segment, on a TCP connection, and expects all of it back.
func (c *combination) checkStream(to netip.AddrPort) {
	c.t.Helper()
	conn := c.dial("tcp", to)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(nodetest.Patience))
	for _, size := range []int{100, 20000, 1} {
		out, back := bytes.Repeat([]byte{byte(size)}, size), make([]byte, size)
		if _, err := conn.Write(out); err != nil {
			c.t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, back); err != nil || !bytes.Equal(out, back) {
			c.t.Fatalf("%v: %d bytes: %v", to, size, err)
		}
	}
}

// checkDenied sends a datagram that the firewall of the server drops: there is no reply, and no program receives it.
func (c *combination) checkDenied(s *server, to netip.AddrPort) {
	c.t.Helper()
	drops, received := c.drops(s.node), uint64(0)
	if r := c.receivers[s.node]; r != nil {
		received = r.Stats().Received
	}
	conn := c.dial("udp", to)
	defer conn.Close()
	if _, err := conn.Write([]byte("denied")); err != nil {
		c.t.Fatal(err)
	}
	wait.Until(c.t, fmt.Sprintf("the firewall denies %v", to), func() bool { return c.drops(s.node) > drops })
	_ = conn.SetReadDeadline(time.Now())
	if n, err := conn.Read(make([]byte, 64)); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Errorf("%v: %d bytes, %v; want no reply", to, n, err)
	}
	if r := c.receivers[s.node]; r != nil && r.Stats().Received != received {
		c.t.Errorf("%v: a denied packet was delivered", to)
	}
}

// checkDelivered sends a datagram that a program on the server's node receives, and no process.
func (c *combination) checkDelivered(s *server, to netip.AddrPort) {
	c.t.Helper()
	conn := c.dial("udp", to)
	defer conn.Close()
	if _, err := conn.Write([]byte("deliver")); err != nil {
		c.t.Fatal(err)
	}
	packets := make([]intercept.Packet, 4)
	n, err := c.receivers[s.node].Receive(packets, nodetest.Patience)
	if n != 1 || err != nil || string(packets[0].Frame[packets[0].Payload:]) != "deliver" {
		c.t.Fatalf("%v: %d packets, %v", to, n, err)
	}
	c.receivers[s.node].Release() // after the watchdog's timeout, later packets would pass
}

// finish compares the modules' counts with the expected ones.
func (c *combination) finish() {
	c.t.Helper()
	for i, n := range c.nodes {
		now := counts(n)
		for _, p := range c.packages {
			if p != "accelerator" && (p != "nat" || i == 0) && now[p] <= c.before[i][p] {
				c.t.Errorf("node %d: module %s has seen no packet: %d, now %d", i, p, c.before[i][p], now[p])
			}
		}
	}
	if c.has("tunnel") && c.sent() == c.carried {
		c.t.Error("the tunnel has carried nothing")
	}
	if c.has("accelerator") && c.has("firewall") {
		if now := c.redirected(); now != c.moved {
			c.t.Errorf("%d bytes were redirected past the firewall", now-c.moved)
		}
	} else if c.has("accelerator") {
		for _, addr := range c.servers[0].addresses(c.has("proxy")) {
			before := c.redirected()
			// The first connections of a program may precede the module's verdict on it.
			wait.Until(c.t, fmt.Sprintf("connections to %v are redirected", addr), func() bool {
				c.checkStream(netip.AddrPortFrom(addr, livePort))
				return c.redirected() > before
			}, c.pairs)
		}
	}
}

// counts returns the packets that reached each module of a node.
func counts(n *nodetest.Node) map[string]uint64 {
	n.T.Helper()
	var modules []v1.Module
	n.Must("GET", "/v1/modules", nil, &modules)
	out := map[string]uint64{}
	for _, m := range modules {
		for _, c := range m.Status.Counts {
			out[m.Metadata.Name] += c.Packets
		}
	}
	return out
}

// drops returns the packets that a node's firewall has dropped by its policy.
func (c *combination) drops(node int) (sum uint64) {
	c.t.Helper()
	var m v1.Module
	c.nodes[node].Must("GET", "/v1/modules/firewall", nil, &m)
	for _, d := range m.Status.Drops {
		if d.Reason == "policy" {
			sum += d.Packets
		}
	}
	return sum
}

// sent returns the packets that the client's node has sent to the other one by the tunnel.
func (c *combination) sent() (sum uint64) {
	c.t.Helper()
	var report tunnel.Report
	c.nodes[0].Must("GET", "/v1/modules/tunnel/nodes", nil, &report)
	for _, n := range report.Nodes {
		if !n.Local {
			sum += n.SentPackets
		}
	}
	return sum
}

// redirected returns the bytes that the accelerator of the client's node has moved between sockets.
func (c *combination) redirected() (sum uint64) {
	for _, p := range c.pairs().([]accelerator.PairReport) {
		sum += p.Bytes
	}
	return sum
}

func (c *combination) pairs() any {
	var pairs []accelerator.PairReport
	c.nodes[0].Must("GET", "/v1/modules/accelerator/pairs", nil, &pairs)
	return pairs
}
