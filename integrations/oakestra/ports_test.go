// SPDX-License-Identifier: Apache-2.0

package oakestra_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// tables returns the nftables tables on the node.
func (n *node) tables() (names []string) {
	err := n.Lab.Node().Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		all, err := c.ListTables()
		for _, t := range all {
			names = append(names, t.Name)
		}
		return err
	})
	if err != nil {
		n.T.Error(err)
	}
	return names
}

// flush does what a firewall's service does when it starts: nft flush ruleset.
func (n *node) flush() {
	n.T.Helper()
	err := n.Lab.Node().Do(func() error {
		c, err := nftables.New()
		if err == nil {
			c.FlushRuleset()
			err = c.Flush()
		}
		return err
	})
	if err != nil {
		n.T.Fatal(err)
	}
}

// socketHost is a container or a host of the lab, in which sockets can be opened.
type socketHost interface{ Do(f func() error) error }

func (c *container) Do(f func() error) error { return c.do(f) }

// serve answers every TCP connection and every datagram to a port with the name and the address of the client,
// datagrams also with the request.
func (c *container) serve(port int, name string) {
	c.n.T.Helper()
	at := fmt.Sprintf(":%d", port)
	var l net.Listener
	var u net.PacketConn
	err := c.do(func() (err error) {
		l, err = net.Listen("tcp", at)
		if err == nil {
			u, err = net.ListenPacket("udp", at)
		}
		return err
	})
	if err != nil {
		c.n.T.Fatal(err)
	}
	c.n.T.Cleanup(func() { l.Close(); u.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(conn, "%s %s", name, ipOf(conn.RemoteAddr()))
			conn.Close()
		}
	}()
	go func() {
		buffer := make([]byte, 64)
		for {
			n, from, err := u.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = u.WriteTo(fmt.Appendf(nil, "%s %s%s", name, ipOf(from), buffer[:n]), from)
		}
	}()
}

func ipOf(a net.Addr) netip.Addr { return netip.MustParseAddrPort(a.String()).Addr().Unmap() }

// Timeouts of a reply, and of the check that none arrives.
const answerTimeout, noAnswerTimeout = 30 * time.Second, time.Second

func dial(from socketHost, network string, to netip.AddrPort, within time.Duration) (conn net.Conn, err error) {
	err = from.Do(func() (err error) {
		conn, err = (&net.Dialer{Timeout: within}).Dial(network, to.String())
		return err
	})
	return conn, err
}

// readAnswer sends a request on a connection, and returns the matching reply or the reason why there is none.
func readAnswer(conn net.Conn, within time.Duration) string {
	question := fmt.Sprintf("?%d", packetNumber.Add(1))
	_, _ = conn.Write([]byte(question))
	_ = conn.SetDeadline(time.Now().Add(within))
	answer := make([]byte, 128)
	for {
		n, err := conn.Read(answer)
		if err != nil {
			return "error: " + err.Error()
		}
		if got, ours := strings.CutSuffix(string(answer[:n]), question); ours || conn.LocalAddr().Network() == "tcp" {
			return got
		}
	}
}

func ask(from socketHost, network string, to netip.AddrPort, within time.Duration) string {
	conn, err := dial(from, network, to, within)
	if err != nil {
		return "error: " + err.Error()
	}
	defer conn.Close()
	return readAnswer(conn, within)
}

// nodeAddresses are the addresses of the node on the network of the lab's hosts.
var nodeAddresses = []netip.Addr{netip.MustParseAddr("10.99.0.1"), netip.MustParseAddr("fd99::1")}

// outside is a host beyond the node.
func (n *node) outside() *netlab.Host {
	n.T.Helper()
	return n.Host("client")
}

// answers checks the names that reply on ports of the node: by port and protocol, an empty name means no reply.
func (n *node) answers(client *netlab.Host, want map[string]string) {
	n.T.Helper()
	for at, name := range want {
		var port uint16
		var network string
		if _, err := fmt.Sscanf(strings.Replace(at, "/", " ", 1), "%d %s", &port, &network); err != nil {
			n.T.Fatal(err)
		}
		within := answerTimeout
		if name == "" {
			within = noAnswerTimeout
		}
		for i, self := range []netip.Addr{client.Addr4(), client.Addr6()} {
			got := ask(client, network, netip.AddrPortFrom(nodeAddresses[i], port), within)
			if name == "" && !strings.HasPrefix(got, "error") || name != "" && got != name+" "+self.String() {
				n.T.Errorf("%s on %s answers %q, want %q", at, nodeAddresses[i], got, name)
			}
		}
	}
}

func withPorts(ports string) string { return fmt.Sprintf(`,"portMappings":%q`, ports) }

func TestPortMappings(t *testing.T) {
	n := newNode(t)
	register(n)
	client := n.outside()
	first, second, other := n.container(), n.container(), n.container()
	first.deploy(appName, 0, withPorts("8000:80/tcp; 5300:53/udp;9000;"))
	first.serve(80, "first")
	first.serve(53, "first")
	first.serve(9000, "first")
	open := map[string]string{"8000/tcp": "first", "5300/udp": "first", "9000/tcp": "first", "8000/udp": "",
		"5300/tcp": "", "80/tcp": ""}
	n.answers(client, open)

	other4, other6 := other.deploy("other.test.db.test", 0, "")
	for i, to := range nodeAddresses { // by the node to a neighbour on the same bridge, which sees the bridge's address
		bridge := []string{"10.18.0.1", "fc00::1"}[i]
		if got := ask(other, "tcp", netip.AddrPortFrom(to, 8000), answerTimeout); got != "first "+bridge {
			t.Errorf("from %s and %s to %s: %q", other4, other6, to, got)
		}
	}
	taken := fmt.Sprintf(
		`{"pid":%d,"serviceName":"third.test.db.test","instanceNumber":0,"portMappings":"7000;8000:1/tcp"}`,
		n.container().pid())
	if got := n.do("POST", "/container/deploy", taken); got.status != 500 ||
		!strings.Contains(got.body, "8000/tcp of the node belongs to "+appName) {
		t.Errorf("a port that another service has: %+v", got)
	}
	if all := list[v1.Service](n, "service"); len(all) != 2 {
		t.Errorf("after a rejected deployment the agent has %d services", len(all))
	}

	n.Kill()
	n.answers(client, open)
	n.start()
	n.answers(client, open)
	n.flush()
	n.Eventually("a flushed table is made again", func() bool { return len(n.tables()) == 1 })
	n.answers(client, open)

	sender, err := dial(client, "udp", netip.AddrPortFrom(nodeAddresses[0], 5300), answerTimeout)
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	second.deploy(appName, 1, withPorts("8000:80/tcp;5300:53/udp"))
	second.serve(80, "second")
	second.serve(53, "second")
	n.answers(client, open)
	if got := readAnswer(sender, answerTimeout); !strings.HasPrefix(got, "first ") {
		t.Errorf("before the undeployment: %q", got)
	}
	n.undeploy(appName, 0)
	n.answers(client, map[string]string{"8000/tcp": "second", "5300/udp": "second", "9000/tcp": ""})
	n.Eventually("a sender that does not pause is answered", func() bool {
		return strings.HasPrefix(readAnswer(sender, noAnswerTimeout), "second ")
	})
	n.undeploy(appName, 1)
	n.answers(client, map[string]string{"8000/tcp": "", "5300/udp": ""})
	n.undeploy("other.test.db.test", 0)
	if got := n.tables(); len(got) != 0 {
		t.Errorf("without services these tables exist: %v", got)
	}
	if got := readAnswer(sender, noAnswerTimeout); !strings.HasPrefix(got, "error") {
		t.Errorf("an answer without services: %q", got)
	}
	again := n.container()
	again.deploy(appName, 0, withPorts("5300:53/udp"))
	again.serve(53, "again")
	n.Eventually("a sender that has sent in vain before is answered", func() bool {
		return strings.HasPrefix(readAnswer(sender, noAnswerTimeout), "again ")
	})
}

// Services reach hosts beyond the node under its address, and the node forwards for them.
func TestMasquerading(t *testing.T) {
	n := newNode(t)
	settings := map[string]string{"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1"}
	setting := func(name, value string) (text string) {
		err := n.Lab.Node().Do(func() (err error) {
			if value != "" {
				err = os.WriteFile("/proc/sys/net/"+name, []byte(value), 0)
			}
			data, err2 := os.ReadFile("/proc/sys/net/" + name)
			text = strings.TrimSpace(string(data))
			return errors.Join(err, err2)
		})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for name := range settings {
		setting(name, "0")
	}
	register(n)
	client, c := n.outside(), n.container()
	c.deploy(appName, 0, "")
	for name, want := range settings {
		if got := setting(name, ""); got != want {
			t.Errorf("%s is %s", name, got)
		}
	}
	for i, at := range []netip.Addr{client.Addr4(), client.Addr6()} {
		var l net.Listener
		if err := client.Do(func() (err error) {
			l,
				err = net.Listen("tcp", netip.AddrPortFrom(at, 700).String())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		conn, err := dial(c, "tcp", netip.AddrPortFrom(at, 700), answerTimeout)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer accepted.Close()
		if got := ipOf(accepted.RemoteAddr()); got != nodeAddresses[i] {
			t.Errorf("a service sends from %s, want the node's %s", got, nodeAddresses[i])
		}
	}
}

// Docker and ufw drop forwarded packets by the policy of iptables' chain: services are still reached, and again after a
// flush. The node itself uses ports, too.
func TestForwardingIsDropped(t *testing.T) {
	n := newNode(t)
	register(n)
	drop := func() {
		if err := n.Lab.Node().Do(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			policy := nftables.ChainPolicyDrop
			for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
				table := c.AddTable(&nftables.Table{Name: "filter", Family: family})
				c.AddChain(&nftables.Chain{Name: "FORWARD", Table: table, Type: nftables.ChainTypeFilter,
					Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &policy})
			}
			return c.Flush()
		}); err != nil {
			t.Fatal(err)
		}
	}
	rules := func() (all int) {
		if err := n.Lab.Node().Do(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6} {
				table := &nftables.Table{Name: "filter", Family: family}
				some, e := c.GetRules(table, &nftables.Chain{Name: "FORWARD", Table: table})
				err, all = errors.Join(err, e), all+len(some)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return all
	}
	drop()
	client, c := n.outside(), n.container()
	c.deploy(appName, 0, withPorts("8000:80"))
	c.serve(80, "web")
	n.answers(client, map[string]string{"8000/tcp": "web"})
	for _, to := range nodeAddresses {
		if got := ask(n.Lab.Node(), "tcp", netip.AddrPortFrom(to, 8000), answerTimeout); got != "web "+to.String() {
			t.Errorf("the node itself, by %s: %q", to, got)
		}
	}
	if got := ask(n.Lab.Node(), "tcp", addrPort("127.0.0.1:8000"), answerTimeout); !strings.Contains(got, "refused") {
		t.Errorf("the node itself, by its loopback address: %q", got)
	}
	if path, err := exec.LookPath("iptables-nft"); err == nil { // must still parse its table
		out, err := n.Lab.Node().Command(t.Context(), path, "-S", "FORWARD").CombinedOutput()
		for _, want := range []string{"-P FORWARD DROP", "-A FORWARD -i oakbr ", "-A FORWARD -o oakbr "} {
			if err != nil || !strings.Contains(string(out), want) {
				t.Errorf("iptables: %v: %q is not in %s", err, want, out)
			}
		}
	}
	n.flush()
	drop()
	n.Eventually("the rules are there again", func() bool { return rules() == 4 })
	n.answers(client, map[string]string{"8000/tcp": "web"})
	n.undeploy(appName, 0)
	n.Eventually("the rules are gone with the last service", func() bool { return rules() == 0 })
	n.container().deploy(appName, 0, "")
	if got := rules(); got != 4 {
		t.Errorf("%d rules", got)
	}
	n.Kill()
	n.Purge()
	if got := rules(); got != 0 {
		t.Errorf("a purge leaves %d rules", got)
	}
	n.flush()
}
