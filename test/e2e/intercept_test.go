// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/intercept"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

const ctrlPort = 5005

// numbered sends numbered datagrams from a host.
type numbered struct {
	t    *testing.T
	conn *net.UDPConn
	next int
}

func (n *node) numbered(from *netlab.Host, to netip.Addr) *numbered {
	n.T.Helper()
	s := &numbered{t: n.T}
	err := from.Do(func() (err error) {
		s.conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, ctrlPort)))
		return err
	})
	if err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() { s.conn.Close() })
	return s
}

func (s *numbered) send(count int) {
	s.t.Helper()
	for range count {
		// ECONNREFUSED for the previous packet is returned as an error.
		if _, err := fmt.Fprintf(s.conn, "CTRL %d", s.next); err != nil {
			_, _ = fmt.Fprintf(s.conn, "CTRL %d", s.next)
		}
		s.next++
	}
}

// receives reads the next packets of a class, and checks that they are numbered consecutively from first.
func receives(t *testing.T, r *intercept.Receiver, first, count int) {
	t.Helper()
	packets := make([]intercept.Packet, 32)
	for got := 0; got < count; {
		n, err := r.Receive(packets[:min(len(packets), count-got)], nodetest.Patience)
		if err != nil || n == 0 {
			t.Fatalf("after %d packets of %d: %d, %v", got, count, n, err)
		}
		for i, p := range packets[:n] {
			if want := fmt.Sprintf("CTRL %d", first+got+i); string(p.Frame[p.Payload:]) != want {
				t.Fatalf("packet %q, want %q", p.Frame[p.Payload:], want)
			}
			if p.Sent > p.Received || p.Flags&intercept.Stolen == 0 {
				t.Fatalf("packet %d: seen at %d, received at %d, flags %x", first+got+i, p.Sent, p.Received, p.Flags)
			}
		}
		got += n
	}
}

func nothingComes(t *testing.T, r *intercept.Receiver) {
	t.Helper()
	packets := make([]intercept.Packet, 1)
	if n, err := r.Receive(packets, 100*time.Millisecond); n != 0 || err != nil {
		t.Fatalf("%d packets, %v; want none", n, err)
	}
}

// stealing returns a config whose watchdog exceeds any other operation of the test's programs, such as killing the
// agent.
func stealing(ports ...int) map[string]any {
	class := map[string]any{"name": "ctrl", "action": "steal", "watchdog": "20s", "match": map[string]any{
		"protocol": "udp", "ports": ports, "payload": []any{map[string]any{"offset": 0, "bytes": "4354524c"}}}}
	return map[string]any{"classes": []any{class}}
}

// A program receives a class's packets during all changes of the module: control messages, another program, a new
// configuration, the end of the agent.
func TestInterceptPrograms(t *testing.T) {
	n := newRunningNode(t)
	n.apply(module("icpt", "intercept", "app=web", stealing(ctrlPort)))
	socket := filepath.Join(n.Run, "modules", "icpt.sock")
	options := intercept.Options{KeepPriority: true}
	var r *intercept.Receiver
	var err error
	n.Eventually("the module serves programs", func() bool {
		r, err = intercept.Open(socket, "ctrl", options)
		return err == nil
	})
	defer func() { r.Close() }()
	s := n.numbered(n.db, n.web.Addr4())
	s.send(100)
	receives(t, r, 0, 100)

	if err := r.Stop(); err != nil && !errors.Is(err, intercept.ErrNoControls) {
		t.Fatal(err)
	} else if err == nil {
		s.send(5)
		nothingComes(t, r)
		if err := r.Start(); err != nil {
			t.Fatal(err)
		}
	}
	first := s.next
	s.send(3)
	receives(t, r, first, 3)

	if _, err := intercept.Open(socket, "ctrl", options); err == nil || !strings.Contains(err.Error(), "has a consumer") {
		t.Errorf("a second program: %v", err)
	}
	r.Release() // otherwise the second program gets them again
	options.Takeover = true
	taker, err := intercept.Open(socket, "ctrl", options)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Receive(make([]intercept.Packet, 1), nodetest.Patience); !errors.Is(err, intercept.ErrTakenOver) {
		t.Errorf("the first program, after the second has taken over: %v", err)
	}
	r.Close()
	r = taker
	s.send(4)
	receives(t, r, first+3, 4)

	n.apply(module("icpt", "intercept", "app=web", stealing(ctrlPort, 6000)))
	nothingComes(t, r) // the class follows the program
	s.send(5)
	receives(t, r, first+7, 5)

	n.Kill()
	s.send(6)
	receives(t, r, first+12, 6)
	n.start()
	nothingComes(t, r)
	s.send(7)
	receives(t, r, first+18, 7)
	if stats := r.Stats(); stats.Lost != 0 || stats.Received != 100+3+4+5+6+7 { // of the class, by both programs
		t.Errorf("%+v", stats)
	}
	n.checkPins()
}
