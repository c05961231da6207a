// SPDX-License-Identifier: Apache-2.0

// Package nodetest gives tests nodes with the real agent: a machine in namespaces, services on its bridge, and kerb as
// it is in the tree. Several may be there at a time, in this process and alongside those of others.
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

// Patience is how long anything may take that takes a few seconds at most: more is a hang, also on a busy machine.
const Patience = wait.Patience

// Node is a machine with one agent.
type Node struct {
	*node.Node
	T   *testing.T
	Lab *netlab.Lab
}

var nodes atomic.Int32

// prefix is that of one more node. It may have 9 letters and digits, of which the process's number takes 5 at most.
func prefix() string {
	i := nodes.Add(1)
	return fmt.Sprintf("kt%s%c%c", strconv.FormatInt(int64(os.Getpid()), 36), 'a'+i/26%26, 'a'+i%26)
}

// New makes a node whose agent is not started yet, for as long as the test lasts.
func New(t *testing.T) *Node {
	t.Helper()
	return Open(t, netlab.Options{Gateway: true})
}

// Open is New with options of the lab, which has a node of its own in any case.
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
		n.T.Errorf("after a purge there are still %v", left)
	}
}

// need ends the test at an error.
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

// Configure writes the configuration of agents that are started from now on.
func (n *Node) Configure(text string) {
	n.T.Helper()
	n.need(n.Node.Configure(text))
}

// Start runs an agent and returns when it answers.
func (n *Node) Start(flags ...string) {
	n.T.Helper()
	n.need(n.Node.Start(flags...))
}

// Stop ends the agent as systemd does.
func (n *Node) Stop() {
	n.T.Helper()
	if err := n.Node.Stop(); err != nil {
		n.T.Error(err)
	}
}

// Purge removes what an agent that has ended has left in the kernel.
func (n *Node) Purge() {
	n.T.Helper()
	if err := n.Node.Purge(); err != nil {
		n.T.Error(err)
	}
}

// Must makes a request to the agent that has to succeed; see Call.
func (n *Node) Must(method, path string, body, into any) {
	n.T.Helper()
	n.need(n.Call(method, path, body, into))
}

// Apply applies resources as an operator does.
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
