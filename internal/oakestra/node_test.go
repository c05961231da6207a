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
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/netlab"
)

const prefix = "koak" // of namespaces and pins

var binary string // kerb as it is in the tree

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // the tests on a node skip
	}
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "kerb")
	build := exec.Command("go", "build", "-o", binary, "github.com/kerb-edge/kerb/cmd/kerb")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("build kerb: %v\n%s", err, out))
	}
	if err := netlab.Sweep(prefix); err != nil {
		panic(err)
	}
	return m.Run()
}

// node is a machine of its own with an agent that listens for Oakestra.
type node struct {
	t      *testing.T
	lab    *netlab.Lab
	dir    string
	bpf    string
	agent  *exec.Cmd
	client *http.Client
}

func newNode(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	lab, err := netlab.NewIn(prefix)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, lab: lab, dir: openDir(t), bpf: fmt.Sprintf("/sys/fs/bpf/%s-%d", prefix, os.Getpid())}
	n.client = &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.dir, "oakestra.sock"))
		},
	}}
	config := "oakestra: {bridge: oakbr}\n"
	if err := os.WriteFile(filepath.Join(n.dir, "kerb.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.close)
	n.start()
	return n
}

func (n *node) close() {
	n.kill()
	if out, err := n.kerb("purge"); err != nil {
		n.t.Errorf("purge: %v: %s", err, out)
	}
	if left := append(n.links(), n.tables()...); len(left) > 0 {
		n.t.Errorf("after a purge the node still has %v", left)
	}
	if n.t.Failed() {
		log, _ := os.ReadFile(filepath.Join(n.dir, "log"))
		n.t.Logf("the agents said:\n%s", log)
	}
	if err := n.lab.Close(); err != nil {
		n.t.Error(err)
	}
}

func (n *node) flags() []string {
	return []string{"--state", n.dir, "--run", n.dir, "--bpf", n.bpf, "--config", filepath.Join(n.dir, "kerb.yaml")}
}

func (n *node) start() {
	n.t.Helper()
	log, err := os.OpenFile(filepath.Join(n.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	n.agent = n.lab.Node().Command(context.Background(), binary, append([]string{"agent"}, n.flags()...)...)
	n.agent.Stdout, n.agent.Stderr = log, log
	if err := n.agent.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.eventually("the listener answers", func() bool {
		r, err := n.client.Get("http://node/ebpf")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == 200
	})
}

// kill is kill -9.
func (n *node) kill() {
	_ = n.agent.Process.Kill()
	_ = n.agent.Wait()
}

func (n *node) kerb(command string, args ...string) (string, error) {
	all := append([]string{command}, args...)
	if command == "purge" {
		all = append(all, n.flags()...)
	}
	cmd := n.lab.Node().Command(context.Background(), binary, all...)
	cmd.Env = append(os.Environ(), "KERB_SOCKET="+filepath.Join(n.dir, "kerb.sock"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// list reads all resources of a kind from the agent.
func list[T any](n *node, noun string) []T {
	n.t.Helper()
	out, err := n.kerb(noun, "list", "-o", "json")
	var all []T
	if err == nil {
		err = json.Unmarshal([]byte(out), &all)
	}
	if err != nil {
		n.t.Fatalf("kerb %s list: %v: %s", noun, err, out)
	}
	return all
}

// links are the interfaces of the listener on the node.
func (n *node) links() (names []string) {
	err := n.lab.Node().Do(func() error {
		all, err := netlink.LinkList()
		for errors.Is(err, netlink.ErrDumpInterrupted) { // something changed meanwhile
			all, err = netlink.LinkList()
		}
		for _, l := range all {
			if l.Attrs().Name == "oakbr" || strings.HasPrefix(l.Attrs().Name, "ko") && !strings.HasPrefix(l.Attrs().Name, n.lab.Prefix()) {
				names = append(names, l.Attrs().Name)
			}
		}
		return err
	})
	if err != nil {
		n.t.Error(err)
	}
	return names
}

func (n *node) eventually(what string, ok func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

// response is what a client can see of one.
type response struct {
	status int
	kind   string
	body   string
}

func (n *node) do(method, path, body string) response {
	n.t.Helper()
	r, err := http.NewRequest(method, "http://node"+path, strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	got, err := n.client.Do(r)
	if err != nil {
		n.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer got.Body.Close()
	data, err := io.ReadAll(got.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return response{got.StatusCode, got.Header.Get("Content-Type"), string(data)}
}

// must sends a request that has to succeed.
func (n *node) must(method, path, body string) string {
	n.t.Helper()
	r := n.do(method, path, body)
	if r.status != 200 {
		n.t.Fatalf("%s %s %s: %d %s", method, path, body, r.status, r.body)
	}
	return r.body
}

// container is a process with a network namespace of its own.
type container struct {
	n   *node
	cmd *exec.Cmd
}

func (n *node) container() *container {
	n.t.Helper()
	cmd := n.lab.Node().Command(context.Background(), "unshare", "--net", "sleep", "infinity")
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	c := &container{n, cmd}
	n.t.Cleanup(c.end)
	n.eventually("a container has a namespace", func() bool {
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

// deploy does what NodeEngine does when the container has been started.
func (c *container) deploy(name string, instance int, more string) (four, six string) {
	c.n.t.Helper()
	body := fmt.Sprintf(`{"pid":%d,"serviceName":%q,"instanceNumber":%d%s}`, c.pid(), name, instance, more)
	var got struct{ ServiceName, NsAddress, NsAddressv6 string }
	if err := json.Unmarshal([]byte(c.n.must("POST", "/container/deploy", body)), &got); err != nil || got.ServiceName != name {
		c.n.t.Fatalf("deploy %s: %+v %v", name, got, err)
	}
	return got.NsAddress, got.NsAddressv6
}

func (n *node) undeploy(name string, instance int) {
	n.t.Helper()
	n.must("POST", "/container/undeploy", fmt.Sprintf(`{"pid":-1,"serviceName":%q,"instanceNumber":%d,"portMappings":""}`, name, instance))
}

// do runs f in the container's namespace. The thread comes back: processes that it has started would end with it.
func (c *container) do(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	ns, err := netns.GetFromPath(fmt.Sprintf("/proc/%d/ns/net", c.pid()))
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := netns.Set(ns); err != nil {
		return err
	}
	return errors.Join(f(), netns.Set(home))
}

// listen opens a socket in the container.
func (c *container) listen(address string) *net.UDPConn {
	c.n.t.Helper()
	at := net.UDPAddrFromAddrPort(addrPort(address))
	var conn *net.UDPConn
	if err := c.do(func() (err error) { conn, err = net.ListenUDP("udp", at); return }); err != nil {
		c.n.t.Fatal(err)
	}
	c.n.t.Cleanup(func() { conn.Close() })
	return conn
}

// arrives tells whether one of several packets from one socket arrives at another.
func arrives(from, to *net.UDPConn, tries int) bool {
	buffer := make([]byte, 16)
	for range tries {
		_, _ = from.WriteTo([]byte("kerb"), to.LocalAddr()) // refused by an ICMP error of an earlier one: sent again
		_ = to.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if _, _, err := to.ReadFrom(buffer); err == nil {
			return true
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

// openDir is a directory that control planes, which are other users, can come to.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", prefix)
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
