// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/netlab"
)

// node is a machine with one agent, whose proxy runs on all services labelled app=mesh.
type node struct {
	t      *testing.T
	lab    *netlab.Lab
	dir    string
	agent  *exec.Cmd // nil while none runs
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
	dir, err := os.MkdirTemp("", prefix) // TempDir's is closed to other users, which control planes are
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, lab: lab, dir: dir}
	n.client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", filepath.Join(n.dir, "run", "kerb.sock"))
	}}}
	t.Cleanup(n.close)
	if err := lab.Node().Do(forwarding); err != nil {
		t.Fatal(err)
	}
	return n
}

// forwarding lets the node route what the proxy leaves to it.
func forwarding() error {
	for _, knob := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		if err := os.WriteFile("/proc/sys/"+knob, []byte("1"), 0); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) flags() []string {
	return []string{"--state", filepath.Join(n.dir, "state"), "--run", filepath.Join(n.dir, "run"), "--bpf", filepath.Join(pins, filepath.Base(n.dir)),
		"--config", filepath.Join(n.dir, "kerb.yaml")}
}

// start runs an agent and returns when it answers.
func (n *node) start(config string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.dir, "kerb.yaml"), []byte(config), 0o600); err != nil {
		n.t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(n.dir, "agent.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	defer log.Close()
	n.agent = n.lab.Node().Command(context.Background(), binary, append([]string{"agent"}, n.flags()...)...)
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

func (n *node) close() {
	if n.agent != nil {
		n.kill()
	}
	if n.t.Failed() {
		log, _ := os.ReadFile(filepath.Join(n.dir, "agent.log"))
		n.t.Logf("the agents said:\n%s", log)
	}
	if out, err := n.lab.Node().Command(context.Background(), binary, append([]string{"purge"}, n.flags()...)...).CombinedOutput(); err != nil {
		n.t.Errorf("purge: %v: %s", err, out)
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

// kerbApply applies resources as an operator does.
func (n *node) kerbApply(resources ...any) {
	n.t.Helper()
	text, err := json.Marshal(resources)
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := n.lab.Node().Command(context.Background(), binary, "apply", "-f", "-")
	cmd.Env = append(os.Environ(), "KERB_SOCKET="+filepath.Join(n.dir, "run", "kerb.sock"))
	cmd.Stdin = bytes.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		n.t.Fatalf("kerb apply: %v: %s", err, out)
	}
}

// told waits until the proxy has taken over a virtual service.
func (n *node) told(name string) {
	n.t.Helper()
	n.eventually("the proxy knows "+name, func() bool { return n.knows(name) })
}

func (n *node) knows(name string) bool {
	var s v1.VirtualService
	err := n.ask(http.MethodGet, "/v1/virtualservices/"+name, nil, &s)
	return err == nil && s.Status != nil && slices.Contains(s.Status.Modules, "px")
}

func (n *node) eventually(what string, ok func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func service(h *netlab.Host) v1.Service {
	return v1.Service{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
		Metadata: v1.ObjectMeta{Name: h.Name(), Labels: map[string]string{"app": "mesh"}},
		Spec:     v1.ServiceSpec{Netns: h.Path()},
	}
}

// proxyModule is the module px.
func proxyModule(config map[string]any) v1.Module {
	return v1.Module{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindModule},
		Metadata: v1.ObjectMeta{Name: "px"},
		Spec:     v1.ModuleSpec{Package: "proxy", Config: config, Attach: v1.Attach{Services: "app=mesh"}, Order: v1.Order{Priority: v1.DefaultPriority}},
	}
}

func virtualService(name string, spec v1.VirtualServiceSpec) v1.VirtualService {
	return v1.VirtualService{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindVirtualService}, Metadata: v1.ObjectMeta{Name: name}, Spec: spec}
}
