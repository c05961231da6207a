// SPDX-License-Identifier: Apache-2.0

// Package nodetest provides nodes with the real agent for tests: a machine in namespaces, services on its bridge, and
// kerb built from the source tree. Several nodes can exist at the same time, in one or several processes.
package nodetest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/tempdir"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// Patience is the timeout for operations that usually take a few seconds at most, also on a busy machine.
const Patience = wait.Patience

// Node is a machine with one agent.
type Node struct {
	*node.Node
	T   *testing.T
	Lab *netlab.Lab
}

var nodes atomic.Int32

// prefix returns the prefix of a further node. It may have 9 letters and digits, of which the process id takes at most
// 5.
func prefix() string {
	i := nodes.Add(1)
	return fmt.Sprintf("kt%s%c%c", strconv.FormatInt(int64(os.Getpid()), 36), 'a'+i/26%26, 'a'+i%26)
}

// New returns a node, which exists until the test ends. Its agent is not started yet.
func New(t *testing.T) *Node {
	t.Helper()
	return Open(t, netlab.Options{Gateway: true})
}

// Open is New with options of the lab, which always has a separate node.
func Open(t *testing.T, opts netlab.Options) *Node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	opts.OwnNode = true
	lab, err := netlab.Open(prefix(), opts)
	if err != nil {
		t.Fatal(err)
	}
	n := &Node{T: t, Lab: lab}
	t.Cleanup(n.close)
	if n.Node, err = node.New(lab.Node(), Kerb); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *Node) close() {
	if n.Node != nil {
		n.end()
	}
	if err := n.Lab.Close(); err != nil {
		n.T.Error(err)
	}
	left, _ := filepath.Glob(filepath.Join("/run/netns", n.Lab.Prefix()+"-*"))
	links, _ := net.Interfaces()
	for _, l := range links {
		if strings.HasPrefix(l.Name, n.Lab.Prefix()) {
			left = append(left, l.Name)
		}
	}
	if len(left) > 0 {
		n.T.Errorf("the test has left behind %v", left)
	}
}

func (n *Node) end() {
	if n.Running() {
		n.Kill()
	}
	if n.T.Failed() {
		n.T.Logf("the agents said:\n%s", n.Log())
	}
	if err := n.Close(); err != nil {
		n.T.Error(err)
	}
	if left, _ := filepath.Glob(tempdir.PinPath(n.Dir) + "*"); len(left) > 0 {
		n.T.Errorf("after a purge these remain: %v", left)
	}
}

// need fails the test on an error.
func (n *Node) need(err error) {
	n.T.Helper()
	if err != nil {
		n.T.Fatal(err)
	}
}

// Host adds a service's namespace.
func (n *Node) Host(name string) *netlab.Host {
	n.T.Helper()
	h, err := n.Lab.Host(name, netlab.HostOptions{})
	n.need(err)
	return h
}

// Configure writes the configuration for agents that are started later.
func (n *Node) Configure(text string) {
	n.T.Helper()
	n.need(n.Node.Configure(text))
}

// Start runs an agent and returns when it responds and knows which chains run.
func (n *Node) Start(flags ...string) {
	n.T.Helper()
	n.need(n.Node.Start(flags...))
}

// Stop stops the agent like systemd.
func (n *Node) Stop() {
	n.T.Helper()
	if err := n.Node.Stop(); err != nil {
		n.T.Error(err)
	}
}

// Purge removes the kernel state of the stopped agent.
func (n *Node) Purge() {
	n.T.Helper()
	if err := n.Node.Purge(); err != nil {
		n.T.Error(err)
	}
}

// Must makes a request to the agent, and fails the test after an error; see Call.
func (n *Node) Must(method, path string, body, into any) {
	n.T.Helper()
	n.need(n.Call(method, path, body, into))
}

// Apply applies resources like an operator.
func (n *Node) Apply(resources ...any) {
	n.T.Helper()
	text, err := json.Marshal(resources)
	n.need(err)
	cmd := n.Command(context.Background(), "apply", "-f", "-")
	cmd.Stdin = bytes.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		n.T.Fatalf("kerb apply: %v: %s", err, out)
	}
}

// Eventually waits until something holds.
func (n *Node) Eventually(what string, ok func() bool) {
	n.T.Helper()
	wait.Until(n.T, what, ok)
}
