// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	kerbnode "github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// node is a machine with two services, web and db, and one agent.
type node struct {
	*nodetest.Node
	web, db  *netlab.Host
	stampDir string // package of module stamp
	cgroup   string // of services; empty for the root
}

// newNode returns a node; its agent is not started yet.
func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{Node: nodetest.New(t)}
	n.web, n.db = n.Host("web"), n.Host("db")
	return n
}

// newRunningNode returns a node whose agent knows the services.
func newRunningNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	n.start()
	n.apply(n.both())
	return n
}

// start starts an agent and waits until it responds.
func (n *node) start(flags ...string) {
	n.T.Helper()
	n.Start(append(flags, "--cgroup", n.cgroup)...)
}

// result is the result of a command of the operator.
type result struct {
	stdout, stderr string
	code           int
}

// kerb runs a command line in the node.
func (n *node) kerb(command string, args ...string) result {
	return n.input("", command, args...)
}

func (n *node) input(stdin, command string, args ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), nodetest.Patience)
	defer cancel()
	cmd := n.Command(ctx, append([]string{command}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	r := result{stdout: stdout.String(), stderr: stderr.String()}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		r.code = exit.ExitCode()
	case err != nil:
		r.code, r.stderr = -1, err.Error()
	}
	return r
}

// complaint returns the standard error of a command without warnings about selectors without matches and about budgets.
func (r result) complaint() (out string) {
	for line := range strings.Lines(r.stderr) {
		if !strings.HasPrefix(line, "warning: ") {
			out += line
		}
	}
	return out
}

// must returns the output of a command, which must succeed without further messages.
func (n *node) must(command string, args ...string) string {
	n.T.Helper()
	r := n.kerb(command, args...)
	if r.code != 0 || r.complaint() != "" {
		n.T.Fatalf("kerb %s %s: exit status %d: %s", command, strings.Join(args, " "), r.code, r.stderr)
	}
	return r.stdout
}

// refused checks that a command fails correctly: exit status, words on standard error, nothing on standard output.
func (n *node) refused(r result, code int, says ...string) {
	n.T.Helper()
	if r.code != code {
		n.T.Errorf("exit status %d, want %d: %s", r.code, code, r.stderr)
	}
	for _, s := range says {
		if !strings.Contains(r.stderr, s) {
			n.T.Errorf("standard error lacks %q: %s", s, r.stderr)
		}
	}
	if r.stdout != "" {
		n.T.Errorf("a failed command answered %q", r.stdout)
	}
}

// apply applies resources as a file.
func (n *node) apply(resources ...any) {
	n.T.Helper()
	if r := n.tryApply(resources...); r.code != 0 || r.complaint() != "" {
		n.T.Fatalf("apply: exit status %d: %s", r.code, r.stderr)
	}
}

func (n *node) tryApply(resources ...any) result {
	n.T.Helper()
	var flat []any
	for _, r := range resources {
		if list, ok := r.([]v1.Service); ok {
			for _, s := range list {
				flat = append(flat, s)
			}
			continue
		}
		flat = append(flat, r)
	}
	text, err := json.Marshal(flat)
	if err != nil {
		n.T.Fatal(err)
	}
	return n.input(string(text), "apply", "-f", "-")
}

// get reads a resource as JSON.
func get[T any](n *node, noun string, name ...string) T {
	n.T.Helper()
	text := n.must(noun, append(append([]string{"get"}, name...), "-o", "json")...)
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		n.T.Fatalf("kerb %s get: %v in %s", noun, err, text)
	}
	return v
}

var service, module = kerbnode.Service, kerbnode.Module

func (n *node) both() []v1.Service { return []v1.Service{service(n.web), service(n.db)} }

// testPackage returns the path of a package of the data plane's own tests.
func testPackage(t *testing.T, name string) string {
	t.Helper()
	dir, err := filepath.Abs("../../internal/dataplane/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func (n *node) pass(name, selector string) v1.Module {
	n.T.Helper()
	return module(name, testPackage(n.T, "pass"), selector, nil)
}
