// SPDX-License-Identifier: Apache-2.0

// Package node runs the real agent in a namespace, with separate directories, so that benchmarks and tests use what an
// operator gets.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/ebpf"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/binpath"
	"github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/tempdir"
	"github.com/kerb-edge/kerb/internal/paths"
)

// patience is the timeout of an agent's start, end, and responses, on a busy machine. Emulated machines are 10 to 20
// times slower.
var patience = time.Minute

func init() {
	if os.Getenv("KERB_MATRIX") != "" {
		patience *= 10
	}
}

// Node is an environment for one agent, which may be running.
type Node struct {
	paths.Paths
	Dir    string   // of all files, also for packages; Close removes it
	Binary string   // kerb
	Stderr *os.File // of agents that are started from now on; nil is LogFile

	ns    *netlab.Namespace
	agent *exec.Cmd // nil while none runs
	ended chan struct{}
	err   error // result of the process
}

// Start runs an agent of the installed kerb in a namespace, and returns when it responds.
func Start(ns *netlab.Namespace) (*Node, error) {
	kerb, err := binpath.FindKerb()
	if err != nil {
		return nil, err
	}
	return StartBinary(ns, kerb)
}

// StartBinary is Start with another binary, such as a copy that shares no memory with other processes.
func StartBinary(ns *netlab.Namespace, binary string) (*Node, error) {
	n, err := New(ns, binary)
	if err != nil {
		return nil, err
	}
	if err := n.Start(); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// New returns a node without an agent and with an empty configuration.
func New(ns *netlab.Namespace, binary string) (*Node, error) {
	dir, err := tempdir.New()
	if err != nil {
		return nil, err
	}
	n := &Node{ns: ns, Binary: binary, Dir: dir, Paths: paths.Paths{Config: filepath.Join(dir, "kerb.yaml"),
		State: filepath.Join(dir, "state"),
		Run:   filepath.Join(dir, "run"), BPF: tempdir.PinPath(dir)}}
	if err := errors.Join(os.Chmod(dir, 0o711), n.Configure("")); err != nil { // control planes run as other users
		return nil, errors.Join(err, tempdir.Remove(dir))
	}
	return n, nil
}

// Configure writes the configuration for agents that are started later.
func (n *Node) Configure(text string) error { return os.WriteFile(n.Config, []byte(text), 0o600) }

// Flags returns the command-line flags of an agent and of a purge.
func (n *Node) Flags() []string {
	return []string{"--state", n.State, "--run", n.Run, "--bpf", n.BPF, "--config", n.Config}
}

// Command prepares a command of the operator. Lab.Close kills it.
func (n *Node) Command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := n.ns.Command(ctx, n.Binary, args...)
	cmd.Env = append(os.Environ(), "KERB_SOCKET="+n.Socket(), "TMPDIR="+n.Dir)
	return cmd
}

// LogFile returns the path of the log of all agents.
func (n *Node) LogFile() string { return filepath.Join(n.Dir, "agent.log") }

// Log returns the log of all agents.
func (n *Node) Log() string {
	text, _ := os.ReadFile(n.LogFile())
	return string(text)
}

// Start runs an agent and returns when it responds and knows which chains run: after its first reconciliation.
func (n *Node) Start(flags ...string) error {
	log, err := os.OpenFile(n.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := n.ns.Command(context.Background(), n.Binary, slices.Concat([]string{"agent"}, n.Flags(), flags)...)
	cmd.Stdout, cmd.Stderr = log, cmp.Or(n.Stderr, log)
	if err := sandbox.Start(cmd); err != nil { // survives the end of the test's thread
		return err
	}
	n.agent, n.ended = cmd, make(chan struct{})
	go func(ended chan struct{}) {
		n.err = cmd.Wait()
		close(ended)
	}(n.ended)
	return n.await()
}

func (n *Node) await() error {
	for deadline := time.Now().Add(patience); ; {
		var st v1.NodeStatus
		err := n.Get("/v1/status", &st)
		if err == nil && !slices.ContainsFunc(st.Conditions, func(c v1.Condition) bool {
			return c.Type == "Reconciled" && c.Reason == "Starting"
		}) {
			return nil
		}
		select {
		case <-n.ended:
			return fmt.Errorf("the agent has ended: %w; it said: %s", n.err, n.Log())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the agent is not ready (%w); it said: %s", cmp.Or(err, errors.New("starting")), n.Log())
		}
	}
}

// Running reports whether an agent was started and not stopped.
func (n *Node) Running() bool { return n.agent != nil }

// PID returns the id of the agent's process.
func (n *Node) PID() int { return n.agent.Process.Pid }

// Kill kills the agent with SIGKILL.
func (n *Node) Kill() {
	_ = n.agent.Process.Kill()
	<-n.ended
	n.agent = nil
}

// Stop stops the agent like systemd.
func (n *Node) Stop() error {
	_ = n.agent.Process.Signal(syscall.SIGTERM)
	select {
	case <-n.ended:
	case <-time.After(patience):
		n.Kill()
		return fmt.Errorf("the agent does not end on SIGTERM; it said: %s", n.Log())
	}
	n.agent = nil
	if n.err != nil {
		return fmt.Errorf("after SIGTERM the agent ended with %w; it said: %s", n.err, n.Log())
	}
	return nil
}

// Purge removes the kernel state of the stopped agent.
func (n *Node) Purge() error {
	if out, err := n.Command(context.Background(),
		append([]string{"purge"}, n.Flags()...)...).CombinedOutput(); err != nil {
		return fmt.Errorf("purge: %w: %s", err, out)
	}
	return nil
}

// Close stops a running agent, and removes everything that it left.
func (n *Node) Close() error {
	var err error
	if n.Running() {
		err = n.Stop()
	}
	return errors.Join(err, n.Purge(), tempdir.Remove(n.Dir))
}

// Call makes a request to the agent, and decodes the response into out unless that is nil.
func (n *Node) Call(method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return client.New(n.Socket()).Call(ctx, method, path, body, into)
}

// Apply applies resources, and returns when they are in effect.
func (n *Node) Apply(resources ...any) error {
	return n.Call(http.MethodPost, "/v1/apply", resources, nil)
}

// Put applies one resource at its own path, and returns when it is in effect.
func (n *Node) Put(path string, resource any) error {
	return n.Call(http.MethodPut, path, resource, nil)
}

// Get decodes the response to a GET request.
func (n *Node) Get(path string, into any) error { return n.Call(http.MethodGet, path, nil, into) }

// Delete deletes the resource at a path, and returns when that is in effect.
func (n *Node) Delete(path string) error { return n.Call(http.MethodDelete, path, nil, nil) }

// Chain opens the program of services in a direction, "ingress" or "egress", on the interface ifindex, or on any if it
// is 0.
func (n *Node) Chain(direction string, ifindex int) (*ebpf.Program, error) {
	var chains []v1.Chain
	if err := n.Get("/v1/chains", &chains); err != nil {
		return nil, err
	}
	for _, c := range chains {
		here := func(p v1.Attachment) bool { return ifindex == 0 || p.Ifindex == ifindex }
		if c.Direction == direction && slices.ContainsFunc(c.Points, here) {
			return ebpf.NewProgramFromID(ebpf.ProgramID(c.Program))
		}
	}
	return nil, fmt.Errorf("the agent runs no chain on %s of a service", direction)
}

// Module returns a resource for a package on the services with the label.
func Module(name, pkg, selector string, config map[string]any) v1.Module {
	return v1.Module{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindModule},
		Metadata: v1.ObjectMeta{Name: name},
		Spec: v1.ModuleSpec{Package: pkg, Attach: v1.Attach{Services: selector},
			CommonModuleSpec: v1.CommonModuleSpec{Config: config, Order: v1.Order{Priority: v1.DefaultPriority}}},
	}
}

// Service returns a resource for a host of the lab, with the label app=NAME and the labels KEY=VALUE.
func Service(h *netlab.Host, labels ...string) v1.Service {
	s := v1.Service{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindService},
		Metadata: v1.ObjectMeta{Name: h.Name(), Labels: map[string]string{"app": h.Name()}},
		Spec:     v1.ServiceSpec{Netns: h.Path()},
	}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		s.Metadata.Labels[key] = value
	}
	return s
}
