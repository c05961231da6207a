// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/ambient"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// ztunnelPath returns the path of ztunnel, or skips the test: no package contains it (docs/benchmarks.md describes how
// to build it).
func ztunnelPath(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath(ambient.Program)
	if err != nil {
		t.Skip(err)
	}
	return path
}

// ztunnel runs ztunnel for both services, optionally as the argument of another program.
func (n *node) ztunnel(program string, within ...string) *exec.Cmd {
	n.T.Helper()
	agent, err := ambient.Prepare(ambient.Mesh{Pods: []*netlab.Host{n.a, n.b}}, filepath.Join(n.Dir, ambient.Program))
	if err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() { agent.Close() })
	words := append(within, agent.Command(program, time.Minute)...)
	cmd := n.command(n.T.Context(), n.a, words[0], words[1:]...)
	log, err := os.Create(filepath.Join(n.Dir, "ztunnel.log"))
	if err != nil {
		n.T.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, n.Dir
	if err := cmd.Start(); err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if said, _ := os.ReadFile(log.Name()); n.T.Failed() {
			n.T.Logf("ztunnel said:\n%s", said)
		}
	})
	if err := agent.Admit(); err != nil {
		n.T.Fatal(err)
	}
	return cmd
}

// ztunnel, on tokio, makes none of the calls that behave differently from TCP.
func TestZtunnelCalls(t *testing.T) {
	program, strace := ztunnelPath(t), installed(t, "strace")
	n := newAcceleratedNode(t, map[string]any{"programs": map[string]any{"allow": []string{ambient.Program}}})
	file := filepath.Join(n.Dir, "calls")
	n.traceFinds(strace, file)
	n.ztunnel(program, append([]string{strace}, tracing(file)...)...)
	n.redis()
	host, port := n.b.Addr4().String(), fmt.Sprint(redisPort)
	before := n.pairReport().Messages
	n.Eventually("messages are redirected to and from ztunnel", func() bool {
		n.output(n.a, "redis-benchmark", "-h", host, "-p", port, "-q", "-c", "1", "-n", "1000", "-t", "get")
		return plain || n.pairReport().Messages >= before+100
	})
	calls, err := os.ReadFile(file)
	if err != nil || bytes.Count(calls, []byte("recvfrom(")) < 1000 {
		t.Fatalf("strace has not seen what ztunnel receives: %v, %d bytes", err, len(calls))
	}
	found := unlikeTCP.FindAllString(string(calls), -1)
	slices.Sort(found)
	if found = slices.Compact(found); len(found) > 0 {
		t.Errorf("ztunnel calls %q", found)
	}
	t.Logf("%d bytes of calls, none unlike TCP; %+v", len(calls), n.pairReport())
}

// The reason why ztunnel is not in the list of safe programs: of a request in several pieces it waits for the last
// ones, which have arrived by TCP after redirected ones, until more is sent. If it responds here, it may be added.
func TestZtunnelMissesBytes(t *testing.T) {
	if plain {
		t.Skip("nothing is redirected")
	}
	program := ztunnelPath(t)
	out, err := exec.Command("python3", "-c", "import os, sys; print(os.path.realpath(sys.executable))").Output()
	if err != nil {
		t.Fatal(err)
	}
	python := strings.TrimSpace(string(out))
	for name, allow := range map[string][]string{"allowed": {python, ambient.Program}, "not allowed": {python}} {
		t.Run(name, func(t *testing.T) {
			n := newAcceleratedNode(t, map[string]any{"programs": map[string]any{"allow": allow}})
			tunnel := n.ztunnel(program)
			script, host, port := installed(t, "testdata/pieces.py"), n.b.Addr4().String(), fmt.Sprint(peerPort)
			n.daemon(n.b, peerPort, python, script, "server", host, port)
			before := n.pairReport().Messages
			var client *pieces
			n.Eventually("messages are redirected to and from ztunnel, if it is allowed", func() bool {
				client = n.pieces(python, script, host, port)
				client.expectLine("warm")
				return len(allow) == 1 || n.pairReport().Messages >= before+50
			})
			client.must(tunnel.Process.Signal(syscall.SIGSTOP))
			client.proceed()
			client.expectLine("sent")
			client.must(tunnel.Process.Signal(syscall.SIGCONT))
			client.proceed()
			if len(allow) > 1 {
				client.expectLine("nothing")
			}
			client.expectLine("answered")
		})
	}
}

// pieces is a client of testdata/pieces.py.
type pieces struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

func (n *node) pieces(python string, args ...string) *pieces {
	n.T.Helper()
	cmd := n.command(n.T.Context(), n.a, python, append([]string{args[0], "client"}, args[1:]...)...)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	cmd.Stderr = os.Stderr
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &pieces{n.T, in, bufio.NewReader(out)}
}

func (p *pieces) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *pieces) proceed() {
	p.t.Helper()
	_, err := p.in.Write([]byte("\n"))
	p.must(err)
}

func (p *pieces) expectLine(word string) {
	p.t.Helper()
	if line, err := p.out.ReadString('\n'); strings.TrimSpace(line) != word {
		p.t.Fatalf("the client says %q, want %s: %v", line, word, err)
	}
}
