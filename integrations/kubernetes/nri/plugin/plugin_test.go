// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	validator "github.com/containerd/nri/plugins/default-validator"
	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/integrations/kubernetes/nri"
	"github.com/kerb-edge/kerb/integrations/kubernetes/nri/plugin"
	"github.com/kerb-edge/kerb/internal/lab/nritest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// node records events, and answers new sandboxes by start.
type node struct {
	start func(context.Context, nri.Pod) error

	mu           sync.Mutex
	runtime      string
	known        map[string]nri.Pod // by ID, of the last connection
	connections  int
	disconnected int
}

func (n *node) Replace(runtime string, all iter.Seq[nri.Pod]) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runtime, n.known = runtime, map[string]nri.Pod{}
	n.connections++
	for p := range all {
		n.known[p.ID] = p
	}
}

func (n *node) Start(ctx context.Context, p nri.Pod) error {
	n.mu.Lock()
	n.known[p.ID] = p
	n.mu.Unlock()
	if n.start == nil {
		return nil
	}
	return n.start(ctx, p)
}

func (n *node) Stop(p nri.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.known, p.ID)
}

func (n *node) Disconnected(error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.disconnected++
}

// pods returns those that the runtime has reported.
func (n *node) pods() map[string]nri.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := map[string]nri.Pod{}
	for id, p := range n.known {
		out[id] = p
	}
	return out
}

func (n *node) connected() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.connections
}

// run runs the plugin until the test ends.
func run(t *testing.T, socket string, n *node) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := plugin.Run(ctx, socket, n, slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
}

// connect runs a runtime with the plugin.
func connect(t *testing.T, n *node, options ...adaptation.Option) *nritest.Runtime {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "nri.sock")
	r := nritest.Start(t, socket, options...)
	run(t, socket, n)
	wait.Until(t, "the plugin is connected", func() bool { return n.connected() == 1 })
	return r
}

// A new sandbox is reported with the labels of its pod alone, and continues when the plugin says so.
func TestStart(t *testing.T) {
	n := &node{}
	r := connect(t, n)
	p := nritest.Pod("s1", "shop", "web", "u1", map[string]string{"app": "web", "io.kubernetes.x": "y"})
	if err := r.Run(p); err != nil {
		t.Fatal(err)
	}
	want := map[string]nri.Pod{"s1": {ID: "s1", Namespace: "shop", Name: "web", UID: "u1",
		Netns: "/run/netns/cni-s1", Labels: map[string]string{"app": "web", "io.kubernetes.x": "y"}}}
	if diff := cmp.Diff(want, n.pods()); diff != "" || n.runtime != "nritest v1" {
		t.Errorf("of runtime %q: %s", n.runtime, diff)
	}
	if r.End(p); len(n.pods()) > 0 {
		t.Errorf("after the end: %v", n.pods())
	}
}

// Pods on the network of the node are no services, and wait for nothing.
func TestHostNetwork(t *testing.T) {
	n := &node{start: func(context.Context, nri.Pod) error { return errors.New("reported") }}
	r := connect(t, n)
	host := nritest.Pod("s1", "kube-system", "proxy", "u1", nil)
	host.Linux.Namespaces = []*api.LinuxNamespace{{Type: "pid"}, {Type: "network"}}
	if err := r.Run(host); err != nil {
		t.Error(err)
	}
	addresses := nritest.Pod("s2", "shop", "web", "u2", nil)
	addresses.Linux, addresses.Ips = nil, []string{"10.0.0.2"}
	if err := r.Run(addresses); err == nil {
		t.Error("a pod with addresses, of which no namespaces are known, was not reported")
	}
	r.Restart()
	wait.Until(t, "the plugin is connected again", func() bool { return n.connected() == 2 })
	if got := n.pods(); len(got) > 0 {
		t.Errorf("reported: %v", got)
	}
}

// An error of the plugin fails the sandbox, with its reason. A plugin that would take too long answers in time: it is
// not taken for one that has failed, which runtimes continue without.
func TestFailures(t *testing.T) {
	n := &node{}
	r := connect(t, n)
	for name, start := range map[string]func(context.Context, nri.Pod) error{
		"module deny does not run": func(context.Context, nri.Pod) error { return errors.New("module deny does not run") },
		"it waits": func(ctx context.Context, _ nri.Pod) error {
			<-ctx.Done()
			return errors.New("it waits")
		},
	} {
		n.start = start
		err := r.Run(nritest.Pod("s1", "shop", "web", "u1", nil))
		if err == nil || !strings.Contains(err.Error(), "pod shop/web has not got its modules: "+name) {
			t.Errorf("%s: %v", name, err)
		}
		if len(n.pods()) > 0 {
			t.Errorf("%s: after the failure there are %v", name, n.pods())
		}
	}
	n.start = nil
	if err := r.Run(nritest.Pod("s2", "shop", "web", "u1", nil)); err != nil || len(n.pods()) != 1 || n.connected() != 1 {
		t.Errorf("afterwards: %v, pods %v, %d connections", err, n.pods(), n.connected())
	}
}

// After a restart of the runtime, or of the plugin, all pods that are there are reported: many in several messages.
func TestSynchronize(t *testing.T) {
	adaptation.SetPluginRequestTimeout(time.Minute) // of messages of 4 MiB, on a busy machine
	t.Cleanup(func() { adaptation.SetPluginRequestTimeout(adaptation.DefaultPluginRequestTimeout) })
	n := &node{}
	r := connect(t, n)
	if err := r.Run(nritest.Pod("gone", "shop", "gone", "u0", nil)); err != nil {
		t.Fatal(err)
	}
	r.Stop()
	wait.Until(t, "the plugin has noticed", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.disconnected > 0 })
	r.Forget("gone")
	const many = 5000 // over 4 MiB, which a message may have at most
	for i := range many {
		r.Add(nritest.Pod(fmt.Sprint("s", i), "shop", fmt.Sprint("web-", i), fmt.Sprint("u", i),
			map[string]string{"app": "web", "long": strings.Repeat("x", 800)}))
	}
	r.Restart()
	wait.Until(t, "the plugin is connected again", func() bool { return n.connected() == 2 })
	got := n.pods()
	if len(got) != many || got["s77"].Name != "web-77" || got["s77"].Labels["app"] != "web" ||
		got["s77"].Netns != "/run/netns/cni-s77" {
		t.Errorf("%d pods, %+v", len(got), got["s77"])
	}
}

// Where the plugin is required, no container starts without it: containerd's default_validator knows it by Name.
func TestRequired(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nri.sock")
	r := nritest.Start(t, socket, adaptation.WithDefaultValidator(&validator.DefaultValidatorConfig{Enable: true,
		RequiredPlugins: []string{plugin.Name}}))
	p := nritest.Pod("s1", "shop", "web", "u1", nil)
	if err := r.CreateContainer(p); err == nil || !strings.Contains(err.Error(), `required plugin "kerb" not present`) {
		t.Errorf("without the plugin: %v", err)
	}
	n := &node{}
	run(t, socket, n)
	wait.Until(t, "the plugin is connected", func() bool { return n.connected() == 1 })
	if err := r.CreateContainer(p); err != nil {
		t.Errorf("with the plugin: %v", err)
	}
}

// What listens on the socket may be no runtime, or one that ends in the middle: the plugin tries again, and connects to
// a runtime when there is one.
func TestNoRuntime(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nri.sock")
	n := &node{}
	run(t, socket, n)
	failures := func() int { n.mu.Lock(); defer n.mu.Unlock(); return n.disconnected }
	wait.Until(t, "it has failed without a socket", func() bool { return failures() > 0 })
	for _, text := range []string{"", "HTTP/1.1 400 Bad Request\r\n\r\n", strings.Repeat("\xff", 1<<16)} {
		before := failures()
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(text)) // the plugin may have closed it
		conn.Close()
		listener.Close()
		wait.Until(t, fmt.Sprintf("it has failed with %.10q", text), func() bool { return failures() > before })
	}
	nritest.Start(t, socket)
	wait.Until(t, "it is connected", func() bool { return n.connected() == 1 })
}

// unconfigured passes connections on to a runtime, whose requests do not arrive: it answers the registration of the
// plugin, and does not configure it.
func unconfigured(t *testing.T, runtime string) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "half.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	answers := func(to io.WriteCloser, from io.Reader) {
		defer to.Close()
		header := make([]byte, 8) // number of a connection, and length
		for {
			if _, err := io.ReadFull(from, header); err != nil {
				return
			}
			whole := append(header[:8:8], make([]byte, binary.BigEndian.Uint32(header[4:]))...)
			if _, err := io.ReadFull(from, whole[8:]); err != nil {
				return
			}
			if multiplex.ConnID(binary.BigEndian.Uint32(whole)) == multiplex.RuntimeServiceConn {
				_, _ = to.Write(whole) // the plugin may have closed it
			}
		}
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			library, err := net.Dial("unix", runtime)
			if err != nil {
				conn.Close()
				continue
			}
			go answers(conn, library)
			go func() {
				defer library.Close()
				_, _ = io.Copy(library, conn)
			}()
		}
	}()
	return socket
}

// A runtime that registers the plugin and does not configure it leaves a stub behind that nothing ends: the process
// does, so that such stubs do not add up.
func TestNotConfigured(t *testing.T) {
	plugin.SetHandshake(t, 500*time.Millisecond)
	runtime := filepath.Join(t.TempDir(), "nri.sock")
	nritest.Start(t, runtime)
	socket := unconfigured(t, runtime)
	in, input := io.Pipe()
	t.Cleanup(func() { input.Close() })
	ended := make(chan error, 1)
	go func() { ended <- plugin.Relay(t.Context(), socket, in, io.Discard, slog.New(slog.DiscardHandler)) }()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), "not configured") {
			t.Error(err)
		}
	case <-time.After(wait.Patience):
		t.Error("the process does not end")
	}
}
