// SPDX-License-Identifier: Apache-2.0

package oakestra_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

func TestMain(m *testing.M) { os.Exit(nodetest.Main(m, nodetest.Oakestra)) }

// node is a simulated machine with an agent that listens for Oakestra.
type node struct {
	*nodetest.Node
	client *http.Client
}

// newNode returns a node, and marks the test as parallel: most of its time it waits.
func newNode(t *testing.T) *node {
	t.Helper()
	t.Parallel()
	return newNodeAlone(t)
}

// newNodeAlone returns a node for a test that cannot run in parallel.
func newNodeAlone(t *testing.T) *node {
	t.Helper()
	n := &node{Node: nodetest.New(t)}
	n.client = &http.Client{Timeout: nodetest.Patience, Transport: client.Unix(n.OakestraSocket())}
	n.Configure(oakestraConfig)
	t.Cleanup(n.purged)
	n.start()
	return n
}

// oakestraConfig is a configuration without a cluster.
const oakestraConfig = "oakestra: {bridge: oakbr, netManager: /none, subnet: 10.18.0.0/26}\n"

// purged checks that a purge leaves nothing of the listener.
func (n *node) purged() {
	if n.Running() {
		n.Kill()
	}
	n.Purge()
	if left := append(n.links(), n.tables()...); len(left) > 0 {
		n.T.Errorf("after a purge the node still has %v", left)
	}
}

// start starts an agent and waits until the listener responds.
func (n *node) start() {
	n.T.Helper()
	n.Start()
	n.Eventually("the listener answers", n.answersAgain)
}

// list returns all resources of a kind from the agent.
func list[T any](n *node, noun string) []T {
	n.T.Helper()
	out, err := n.Command(context.Background(), noun, "list", "-o", "json").CombinedOutput()
	var all []T
	if err == nil {
		err = json.Unmarshal(out, &all)
	}
	if err != nil {
		n.T.Fatalf("kerb %s list: %v: %s", noun, err, out)
	}
	return all
}

// links returns the names of the listener's interfaces on the node.
func (n *node) links() (names []string) {
	err := n.Lab.Node().Do(func() error {
		all, err := netlink.LinkList()
		for errors.Is(err, netlink.ErrDumpInterrupted) { // an interface changed during the dump
			all, err = netlink.LinkList()
		}
		for _, l := range all {
			if l.Attrs().Name == "oakbr" || strings.HasPrefix(l.Attrs().Name, "ko") &&
				!strings.HasPrefix(l.Attrs().Name, n.Lab.Prefix()) {
				names = append(names, l.Attrs().Name)
			}
		}
		return err
	})
	if err != nil {
		n.T.Error(err)
	}
	return names
}

// response has the parts of a response that a client can see.
type response struct {
	status int
	kind   string
	body   string
}

func (n *node) do(method, path, body string) response {
	n.T.Helper()
	r, err := http.NewRequest(method, "http://node"+path, strings.NewReader(body))
	if err != nil {
		n.T.Fatal(err)
	}
	got, err := n.client.Do(r)
	if err != nil {
		n.T.Fatalf("%s %s: %v", method, path, err)
	}
	defer got.Body.Close()
	data, err := io.ReadAll(got.Body)
	if err != nil {
		n.T.Fatal(err)
	}
	return response{got.StatusCode, got.Header.Get("Content-Type"), string(data)}
}

// must sends a request that has to succeed.
func (n *node) must(method, path, body string) string {
	n.T.Helper()
	r := n.do(method, path, body)
	if r.status != 200 {
		n.T.Fatalf("%s %s %s: %d %s", method, path, body, r.status, r.body)
	}
	return r.body
}

// container is a process with its own network namespace.
type container struct {
	n   *node
	cmd *exec.Cmd
}

func (n *node) container() *container {
	n.T.Helper()
	cmd := n.Lab.Node().Command(context.Background(), "unshare", "--net", "sleep", "infinity")
	if err := cmd.Start(); err != nil {
		n.T.Fatal(err)
	}
	c := &container{n, cmd}
	n.T.Cleanup(c.end)
	n.Eventually("a container has a namespace", func() bool {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.pid()))
		return bytes.Equal(comm, []byte("sleep\n"))
	})
	return c
}

func (c *container) pid() int { return c.cmd.Process.Pid }

func (c *container) end() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}

// tooSlow reports whether a deployment failed because this machine is too busy for its timeout.
func (r response) tooSlow() bool {
	return r.status == http.StatusInternalServerError && strings.Contains(r.body, context.DeadlineExceeded.Error())
}

// deploy does what NodeEngine does when the container has been started.
func (c *container) deploy(name string, instance int, more string) (four, six string) {
	c.n.T.Helper()
	body := fmt.Sprintf(`{"pid":%d,"serviceName":%q,"instanceNumber":%d%s}`, c.pid(), name, instance, more)
	var r response
	c.n.Eventually("a deployment in time", func() bool {
		r = c.n.do("POST", "/container/deploy", body)
		return !r.tooSlow()
	})
	var got struct{ ServiceName, NsAddress, NsAddressv6 string }
	if err := json.Unmarshal([]byte(r.body), &got); err != nil || r.status != http.StatusOK || got.ServiceName != name {
		c.n.T.Fatalf("deploy %s: %+v %v", name, r, err)
	}
	return got.NsAddress, got.NsAddressv6
}

func (n *node) undeploy(name string, instance int) {
	n.T.Helper()
	n.must("POST", "/container/undeploy", fmt.Sprintf(`{"pid":-1,"serviceName":%q,"instanceNumber":%d,"portMappings":""}`,
		name, instance))
}

// do runs f in the container's namespace. The thread is switched back and reused: processes that it has started would
// end with it.
func (c *container) do(f func() error) error {
	ns, err := netns.GetFromPath(fmt.Sprintf("/proc/%d/ns/net", c.pid()))
	if err != nil {
		return err
	}
	defer ns.Close()
	return inNamespace(ns, f)
}

func inNamespace(ns netns.NsHandle, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	if err := netns.Set(ns); err != nil {
		return err
	}
	return errors.Join(f(), netns.Set(home))
}

// listen opens a socket in the container.
func (c *container) listen(address string) *net.UDPConn {
	c.n.T.Helper()
	at := net.UDPAddrFromAddrPort(addrPort(address))
	var conn *net.UDPConn
	if err := c.do(func() (err error) { conn, err = net.ListenUDP("udp", at); return }); err != nil {
		c.n.T.Fatal(err)
	}
	c.n.T.Cleanup(func() { conn.Close() })
	return conn
}

// fewTries packets show that none arrives; manyTries is the limit until one arrives, for up to half a minute.
const fewTries, manyTries = 5, 300

// packetNumber numbers packets, so that late ones are not taken for others.
var packetNumber atomic.Uint32

// arrives reports whether one of several packets from one socket arrives at another.
func arrives(from, to *net.UDPConn, tries int) bool {
	packet, buffer := fmt.Appendf(nil, "kerb %d", packetNumber.Add(1)), make([]byte, 32)
	for range tries {
		_, _ = from.WriteTo(packet, to.LocalAddr()) // may fail with an ICMP error of an earlier packet: sent again
		_ = to.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		for {
			n, _, err := to.ReadFrom(buffer)
			if err != nil {
				break
			}
			if bytes.Equal(buffer[:n], packet) {
				return true
			}
		}
	}
	return false
}

func moduleNames(all []v1.Module) (names []string) {
	for _, m := range all {
		names = append(names, m.Metadata.Name)
	}
	return names
}
