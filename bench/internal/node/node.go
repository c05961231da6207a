// SPDX-License-Identifier: Apache-2.0

// Package node runs the real agent, this very binary, in the node namespace of a lab, with directories of its own: what
// the benchmarks measure is what an operator gets.
package node

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
	"slices"
	"syscall"
	"time"

	"github.com/cilium/ebpf"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/netlab"
	"github.com/kerb-edge/kerb/internal/scratch"
)

// Node is a running agent.
type Node struct {
	ns   *netlab.Namespace
	self string // the binary
	cmd  *exec.Cmd
	dir  string // state, socket, packages
	bpf  string
	log  bytes.Buffer
	http *http.Client
	exit chan error
}

// Start runs an agent in the lab's node namespace and waits until it answers.
func Start(lab *netlab.Lab) (*Node, error) { return StartIn(lab.Node()) }

// StartIn is Start in another namespace than the lab's node.
func StartIn(ns *netlab.Namespace) (*Node, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(ns, self)
}

// StartBinary is Start with a binary other than this one, such as a copy that shares no memory with this process.
func StartBinary(lab *netlab.Lab, binary string) (*Node, error) { return start(lab.Node(), binary) }

func start(ns *netlab.Namespace, binary string) (*Node, error) {
	dir, err := scratch.Dir()
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil { // control planes are other users
		return nil, err
	}
	n := &Node{ns: ns, self: binary, dir: dir, bpf: scratch.Pins(dir), exit: make(chan error, 1)}
	n.cmd = ns.Command(context.Background(), binary, append([]string{"agent"}, n.flags()...)...)
	n.cmd.Stdout, n.cmd.Stderr = &n.log, &n.log
	if err := n.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { n.exit <- n.cmd.Wait() }()
	n.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, "kerb.sock"))
	}}}
	return n, n.await()
}

func (n *Node) flags() []string {
	return []string{"--state", n.dir, "--run", n.dir, "--bpf", n.bpf}
}

func (n *Node) await() error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, err := n.call(http.MethodGet, "/v1/status", nil); err == nil {
			return nil
		} else if time.Now().After(deadline) {
			return errors.Join(fmt.Errorf("agent does not answer: %w; it said: %s", err, n.log.String()), n.Close())
		}
	}
}

// PID is the agent's process.
func (n *Node) PID() int { return n.cmd.Process.Pid }

// Dir is a directory for packages, removed by Close.
func (n *Node) Dir() string { return n.dir }

// Apply gives resources to the agent and returns when they are in effect.
func (n *Node) Apply(resources ...any) error {
	body, err := json.Marshal(resources)
	if err != nil {
		return err
	}
	_, err = n.call(http.MethodPost, "/v1/apply", body)
	return err
}

// Put gives the agent one resource at its own path and returns when it is in effect.
func (n *Node) Put(path string, resource any) error {
	body, err := json.Marshal(resource)
	if err != nil {
		return err
	}
	_, err = n.call(http.MethodPut, path, body)
	return err
}

// Get returns what the agent answers on a path.
func (n *Node) Get(path string) ([]byte, error) { return n.call(http.MethodGet, path, nil) }

// Delete removes the resource at a path and returns when that is in effect.
func (n *Node) Delete(path string) error {
	_, err := n.call(http.MethodDelete, path, nil)
	return err
}

// Chain opens the program that services run in a direction, "ingress" or "egress"; ifindex says on which interface, 0 any.
func (n *Node) Chain(direction string, ifindex int) (*ebpf.Program, error) {
	body, err := n.Get("/v1/chains")
	if err != nil {
		return nil, err
	}
	var chains []v1.Chain
	if err := json.Unmarshal(body, &chains); err != nil {
		return nil, err
	}
	for _, c := range chains {
		here := func(p v1.Instance) bool { return ifindex == 0 || p.Ifindex == ifindex }
		if c.Direction == direction && slices.ContainsFunc(c.Points, here) {
			return ebpf.NewProgramFromID(ebpf.ProgramID(c.Program))
		}
	}
	return nil, fmt.Errorf("the agent runs no chain on %s of a service", direction)
}

func (n *Node) call(method, path string, body []byte) ([]byte, error) {
	r, err := http.NewRequest(method, "http://kerb"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := n.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	return text, err
}

// Close ends the agent and removes all that it left, in the kernel too.
func (n *Node) Close() error {
	n.http.CloseIdleConnections()
	_ = n.cmd.Process.Signal(syscall.SIGTERM)
	<-n.exit
	out, err := n.ns.Command(context.Background(), n.self, append([]string{"purge"}, n.flags()...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("purge: %w: %s", err, out)
	}
	return errors.Join(err, os.RemoveAll(n.dir))
}

// Module is a resource for a package on the services with the label.
func Module(name, pkg, selector string, config map[string]any) v1.Module {
	return v1.Module{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindModule},
		Metadata: v1.ObjectMeta{Name: name},
		Spec: v1.ModuleSpec{Package: pkg, Config: config, Attach: v1.Attach{Services: selector},
			Order: v1.Order{Priority: v1.DefaultPriority}},
	}
}

// Service is a resource for a host of the lab.
func Service(h *netlab.Host) v1.Service {
	return v1.Service{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
		Metadata: v1.ObjectMeta{Name: h.Name(), Labels: map[string]string{"app": h.Name()}},
		Spec:     v1.ServiceSpec{Netns: h.Path()},
	}
}
