// SPDX-License-Identifier: Apache-2.0

package accelerator

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
	"testing"
	"time"

	"github.com/cilium/ebpf"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/netlab"
)

// node is a machine with two services, a and b, whose processes are in one cgroup, and one agent.
type node struct {
	t      *testing.T
	lab    *netlab.Lab
	a, b   *netlab.Host
	cgroup *os.File
	dir    string
	agent  *exec.Cmd // nil while none runs
	client *http.Client
}

// plain leaves the accelerator out.
var plain = os.Getenv("KERB_PLAIN") != ""

// newNode makes a node without an agent.
func newNode(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	n := &node{t: t, cgroup: newCgroup(t)}
	var err error
	if n.lab, err = netlab.NewIn(prefix); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.close)
	if n.dir, err = os.MkdirTemp("", prefix); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(n.dir, 0o711); err != nil { // control planes are another user
		t.Fatal(err)
	}
	n.client = &http.Client{Timeout: programTime, Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", filepath.Join(n.dir, "run", "kerb.sock"))
	}}}
	n.file("kerb.yaml", "cgroup: "+n.cgroup.Name()+"\n")
	n.a, n.b = n.host("a"), n.host("b")
	return n
}

func (n *node) host(name string) *netlab.Host {
	n.t.Helper()
	h, err := n.lab.Host(name, netlab.HostOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return h
}

// newAcceleratedNode is a node whose services are accelerated.
func newAcceleratedNode(t *testing.T, config map[string]any) *node {
	t.Helper()
	n := newNode(t)
	if !plain {
		n.start()
		n.apply(service(n.a), service(n.b), accelerator(config))
		n.settled()
	}
	return n
}

func service(h *netlab.Host) v1.Service {
	return v1.Service{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
		Metadata: v1.ObjectMeta{Name: h.Name(), Labels: map[string]string{"app": "mesh"}},
		Spec:     v1.ServiceSpec{Netns: h.Path()},
	}
}

// accelerator is the module fast.
func accelerator(config map[string]any) v1.Module {
	return v1.Module{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindModule},
		Metadata: v1.ObjectMeta{Name: "fast"},
		Spec:     v1.ModuleSpec{Package: "accelerator", Config: config, Attach: v1.Attach{Services: "app=mesh"}, Order: v1.Order{Priority: v1.DefaultPriority}},
	}
}

// command prepares a process of a service.
func (n *node) command(ctx context.Context, h *netlab.Host, name string, args ...string) *exec.Cmd {
	cmd := h.Command(ctx, name, args...)
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(n.cgroup.Fd())
	return cmd
}

func (n *node) flags() []string {
	return []string{"--state", filepath.Join(n.dir, "state"), "--run", filepath.Join(n.dir, "run"), "--bpf", filepath.Join(pins, filepath.Base(n.dir)),
		"--config", filepath.Join(n.dir, "kerb.yaml")}
}

// start runs an agent and returns when it answers.
func (n *node) start() {
	n.t.Helper()
	log, err := os.OpenFile(filepath.Join(n.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	n.agent = n.lab.Node().Command(context.Background(), kerb, append([]string{"agent"}, n.flags()...)...)
	n.agent.Stdout, n.agent.Stderr = log, log
	if err := n.agent.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.eventually("the agent answers", func() bool { return n.ask(http.MethodGet, "/v1/status", nil, nil) == nil })
}

// kill is kill -9.
func (n *node) kill() {
	_ = n.agent.Process.Kill()
	_ = n.agent.Wait()
	n.agent = nil
}

func (n *node) purge() {
	n.t.Helper()
	if out, err := n.lab.Node().Command(context.Background(), kerb, append([]string{"purge"}, n.flags()...)...).CombinedOutput(); err != nil {
		n.t.Errorf("purge: %v: %s", err, out)
	}
}

func (n *node) close() {
	if n.agent != nil {
		n.kill()
	}
	if err := os.WriteFile(filepath.Join(n.cgroup.Name(), "cgroup.kill"), []byte("1"), 0); err != nil { // workers outlive who started them
		n.t.Error(err)
	}
	if n.t.Failed() {
		log, _ := os.ReadFile(filepath.Join(n.dir, "agent.log"))
		n.t.Logf("the agents said:\n%s", log)
	}
	if !plain {
		n.purge()
	}
	if err := n.lab.Close(); err != nil {
		n.t.Error(err)
	}
	os.RemoveAll(n.dir)
}

// ask is a request to the agent.
func (n *node) ask(method, path string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, "http://kerb"+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := n.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	if res.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, path, res.Status, answer)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer, into)
}

func (n *node) must(method, path string, body, into any) {
	n.t.Helper()
	if err := n.ask(method, path, body, into); err != nil {
		n.t.Fatal(err)
	}
}

// apply applies resources as an operator does.
func (n *node) apply(resources ...any) {
	n.t.Helper()
	text, err := json.Marshal(resources)
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := n.lab.Node().Command(context.Background(), kerb, "apply", "-f", "-")
	cmd.Env = append(os.Environ(), "KERB_SOCKET="+filepath.Join(n.dir, "run", "kerb.sock"))
	cmd.Stdin = bytes.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("kerb apply: %v: %s", err, out)
	}
}

// settled waits until the data plane knows both services, and the control plane answers: an agent that takes over a living data
// plane starts it a moment later.
func (n *node) settled() {
	n.t.Helper()
	n.eventually("the module accelerates both services", func() bool {
		return n.entries("members") == 2 && n.ask(http.MethodGet, "/v1/modules/fast/pairs", nil, nil) == nil
	})
}

// entries is how many a map of the module has, -1 without a module.
func (n *node) entries(name string) (count int) {
	n.t.Helper()
	found, _ := filepath.Glob(filepath.Join(pins, filepath.Base(n.dir), "modules", "fast", "*", name))
	if len(found) == 0 {
		return -1
	}
	m, err := ebpf.LoadPinnedMap(found[len(found)-1], &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		n.t.Fatal(err)
	}
	defer m.Close()
	key := make([]byte, m.KeySize())
	for err = m.NextKey(nil, key); err == nil && count <= int(m.MaxEntries()); err = m.NextKey(bytes.Clone(key), key) {
		count++
	}
	if !errors.Is(err, ebpf.ErrKeyNotExist) {
		n.t.Fatalf("map %s: %v", name, err)
	}
	return count
}

func (n *node) eventually(what string, ok func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(programTime); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("not within %v: %s", programTime, what)
		}
	}
}
