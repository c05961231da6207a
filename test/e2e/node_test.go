// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/netlab"
)

// node is a machine with two services, web and db, and directories for one agent.
type node struct {
	t               *testing.T
	lab             *netlab.Lab
	web, db         *netlab.Host
	dir             string
	state, run, bpf string
	binary          string
	stampDir        string   // package of module stamp
	cgroup          string   // of services; empty for the root
	agent           *process // nil while none runs
}

// process is a running agent.
type process struct {
	cmd  *exec.Cmd
	log  *os.File
	done chan struct{}
	err  error // after done
}

var nodes atomic.Int32

// newNode makes a node; its agent is not started yet.
func newNode(t *testing.T) *node {
	t.Helper()
	return newNodeIn(t, prefix)
}

// newNodeIn makes one beside others, under a prefix of its own.
func newNodeIn(t *testing.T, prefix string) *node {
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
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{t: t, lab: lab, dir: dir, binary: current, state: filepath.Join(dir, "state"), run: filepath.Join(dir, "run"),
		bpf: filepath.Join(pins, fmt.Sprintf("%s%d", bpfPrefix(), nodes.Add(1)))}
	t.Cleanup(n.close)
	n.web, n.db = n.host("web"), n.host("db")
	return n
}

// newRunningNode is a node whose agent knows the services.
func newRunningNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	n.start()
	n.apply(n.both())
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

func (n *node) close() {
	if n.agent != nil {
		n.kill()
	}
	if n.t.Failed() {
		log, _ := os.ReadFile(n.logFile())
		n.t.Logf("the agents said:\n%s", log)
	}
	if r := n.kerb("purge", n.flags()...); r.code != 0 {
		n.t.Errorf("purge: exit status %d: %s", r.code, r.stderr)
	}
	if err := n.lab.Close(); err != nil {
		n.t.Error(err)
	}
}

func (n *node) flags() []string {
	return []string{"--state", n.state, "--run", n.run, "--bpf", n.bpf, "--config", os.DevNull}
}

func (n *node) socket() string  { return filepath.Join(n.run, "kerb.sock") }
func (n *node) logFile() string { return filepath.Join(n.dir, "agent.log") }

// start runs an agent and returns when it answers.
func (n *node) start() {
	n.t.Helper()
	n.agent = n.launch(append(n.flags(), "--cgroup", n.cgroup)...)
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if n.kerb("status").code == 0 {
			return
		}
		select {
		case <-n.agent.done:
			n.t.Fatalf("the agent ended: %v", n.agent.err)
		default:
		}
		if time.Now().After(deadline) {
			n.t.Fatal("the agent does not answer")
		}
	}
}

func (n *node) launch(flags ...string) *process {
	n.t.Helper()
	log, err := os.OpenFile(n.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	p := &process{log: log, done: make(chan struct{})}
	p.cmd = n.lab.Node().Command(context.Background(), n.binary, append([]string{"agent"}, flags...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		log.Close()
		close(p.done)
	}()
	return p
}

// kill is kill -9.
func (n *node) kill() {
	_ = n.agent.cmd.Process.Kill()
	<-n.agent.done
	n.agent = nil
}

// stop ends the agent as systemd does.
func (n *node) stop() {
	n.t.Helper()
	_ = n.agent.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-n.agent.done:
	case <-time.After(20 * time.Second):
		n.t.Error("the agent does not end on SIGTERM")
		n.kill()
		return
	}
	if n.agent.err != nil {
		n.t.Errorf("after SIGTERM the agent ended with %v", n.agent.err)
	}
	n.agent = nil
}

// result is what a command of the operator answered.
type result struct {
	stdout, stderr string
	code           int
}

// kerb runs a command line in the node.
func (n *node) kerb(command string, args ...string) result {
	return n.input("", command, args...)
}

func (n *node) input(stdin, command string, args ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := n.lab.Node().Command(ctx, n.binary, append([]string{command}, args...)...)
	cmd.Env = append(os.Environ(), "KERB_SOCKET="+n.socket(), "TMPDIR="+n.dir)
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

// must returns the answer of a command that has to succeed, and to say nothing else.
func (n *node) must(command string, args ...string) string {
	n.t.Helper()
	r := n.kerb(command, args...)
	if r.code != 0 || r.stderr != "" {
		n.t.Fatalf("kerb %s %s: exit status %d: %s", command, strings.Join(args, " "), r.code, r.stderr)
	}
	return r.stdout
}

// refused checks that a command fails as it should: exit status, words on standard error, nothing on standard output.
func (n *node) refused(r result, code int, says ...string) {
	n.t.Helper()
	if r.code != code {
		n.t.Errorf("exit status %d, want %d: %s", r.code, code, r.stderr)
	}
	for _, s := range says {
		if !strings.Contains(r.stderr, s) {
			n.t.Errorf("standard error lacks %q: %s", s, r.stderr)
		}
	}
	if r.stdout != "" {
		n.t.Errorf("a failed command answered %q", r.stdout)
	}
}

// apply gives resources to the agent as a file.
func (n *node) apply(resources ...any) {
	n.t.Helper()
	if r := n.tryApply(resources...); r.code != 0 || r.stderr != "" {
		n.t.Fatalf("apply: exit status %d: %s", r.code, r.stderr)
	}
}

func (n *node) tryApply(resources ...any) result {
	n.t.Helper()
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
		n.t.Fatal(err)
	}
	return n.input(string(text), "apply", "-f", "-")
}

// get reads a resource as JSON.
func get[T any](n *node, noun string, name ...string) T {
	n.t.Helper()
	text := n.must(noun, append(append([]string{"get"}, name...), "-o", "json")...)
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		n.t.Fatalf("kerb %s get: %v in %s", noun, err, text)
	}
	return v
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func service(h *netlab.Host, labels ...string) v1.Service {
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

func (n *node) both() []v1.Service { return []v1.Service{service(n.web), service(n.db)} }

// testPackage is a package of the data plane's own tests, as an operator names it.
func testPackage(t *testing.T, name string) string {
	t.Helper()
	dir, err := filepath.Abs("../../internal/dataplane/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func module(name, pkg, selector string, config map[string]any) v1.Module {
	return v1.Module{
		TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindModule},
		Metadata: v1.ObjectMeta{Name: name},
		Spec:     v1.ModuleSpec{Package: pkg, Config: config, Attach: v1.Attach{Services: selector}, Order: v1.Order{Priority: v1.DefaultPriority}},
	}
}

func (n *node) pass(name, selector string) v1.Module {
	n.t.Helper()
	return module(name, testPackage(n.t, "pass"), selector, nil)
}
