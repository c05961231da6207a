// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

const (
	peerPort = 7001
	// silence is the timeout of a peer's output, which it writes every half second.
	silence = nodetest.Patience
)

// peer is a running testdata/peer.
type peer struct {
	what  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	talks atomic.Int64 // correct conversations
	bytes atomic.Int64 // received and correct
	ready chan struct{}
	done  chan struct{}
	last  string // its last line; set after done
	err   error  // how it ended, or that it was silent; set after done
}

// startPeer runs a peer on a host, and watches its output.
func (n *node) startPeer(h *netlab.Host, quiet time.Duration, args ...string) *peer {
	n.T.Helper()
	p := &peer{what: h.Name() + " " + strings.Join(args, " "), ready: make(chan struct{}), done: make(chan struct{})}
	p.cmd = n.command(context.Background(), h, talker, args...)
	stdin, err1 := p.cmd.StdinPipe()
	stdout, err2 := p.cmd.StdoutPipe()
	if err1 != nil || err2 != nil {
		n.T.Fatal(err1, err2)
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(p.kill)
	go p.listen(stdout, quiet)
	return p
}

func (p *peer) listen(stdout io.Reader, quiet time.Duration) {
	defer close(p.done)
	var silent atomic.Bool
	watchdog := time.AfterFunc(silence, func() { // stopped by the first line
		silent.Store(true)
		_ = p.cmd.Process.Kill()
	})
	for lines := bufio.NewScanner(stdout); lines.Scan(); watchdog.Reset(quiet) {
		p.last = lines.Text()
		p.parseLine(strings.Fields(p.last))
	}
	watchdog.Stop()
	if p.err = p.cmd.Wait(); silent.Load() {
		p.err = fmt.Errorf("it has said nothing for %v", quiet)
	}
}

func (p *peer) parseLine(words []string) {
	switch {
	case len(words) == 3 && words[0] == "at":
		talks, _ := strconv.ParseInt(words[1], 10, 64)
		n, _ := strconv.ParseInt(words[2], 10, 64)
		p.talks.Store(talks)
		p.bytes.Store(n)
	case len(words) == 1: // "ready", "held"
		close(p.ready)
	}
}

// kill kills (SIGKILL) the peer.
func (p *peer) kill() {
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *peer) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// finish waits until a peer has completed; a server runs until it is asked to end.
func (p *peer) finish() error {
	_ = p.stdin.Close()
	<-p.done
	if p.err != nil {
		return fmt.Errorf("peer %s: %w: %s", p.what, p.err, p.last)
	}
	return nil
}

// serve runs a server of conversations and waits until it listens.
func (n *node) serve(h *netlab.Host, options ...string) *peer {
	n.T.Helper()
	p := n.startPeer(h, silence, append(options, "serve", strconv.Itoa(peerPort))...)
	n.isReady(p)
	return p
}

func (n *node) isReady(p *peer) {
	n.T.Helper()
	select {
	case <-p.ready:
	case <-p.done:
		n.T.Fatalf("peer %s: %v: %s", p.what, p.err, p.last)
	}
}

// addresses returns the addresses under which other hosts reach one.
func addresses(h *netlab.Host) []string { return []string{h.Addr4().String(), h.Addr6().String()} }

var loopback = []string{"127.0.0.1", "::1"}

// to returns the end of a peer's command line.
func to(addresses []string) []string {
	return append(addresses[:len(addresses):len(addresses)], strconv.Itoa(peerPort))
}

// The harness detects every kind of fault whose absence it should show.
func TestHarness(t *testing.T) {
	n := newNode(t)
	for _, fault := range []string{"none", "flip", "lose", "repeat", "swap", "mix", "stall", "early"} {
		var options []string
		if fault == "stall" {
			options = []string{"-t", "1"} // others may wait longer, on a busy machine
		}
		server := n.serve(n.b, options...)
		client := n.startPeer(n.a, silence, append(append(options, "-s", "1", "-f", fault, "talk", "8"),
			to(addresses(n.b))...)...)
		n.Eventually("something has come of "+fault, func() bool {
			return client.ended() || server.ended() || fault == "none" && client.talks.Load() > 20
		})
		clientErr, serverErr := client.finish(), server.finish()
		if noticed := clientErr != nil || serverErr != nil; noticed != (fault != "none") {
			t.Errorf("%s: %v; %v", fault, clientErr, serverErr)
		}
		t.Logf("%s: %s; %s", fault, client.last, server.last)
	}
}

// A stopped process is detected, too.
func TestHarnessSilence(t *testing.T) {
	n := newNode(t)
	p := n.startPeer(n.b, 5*time.Second, "serve", strconv.Itoa(peerPort))
	n.isReady(p)
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := p.finish(); err == nil || !strings.Contains(err.Error(), "said nothing") {
		t.Errorf("a stopped peer: %v", err)
	}
}
