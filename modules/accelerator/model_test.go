// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
)

// modelEnd is the policy's state of one end of a connection.
type modelEnd struct {
	messages, seen, turns, run uint32
	runBytes                   uint64
	queued                     int // redirected since the receiver's queue was last empty
	redirects                  uint64
	byQueue, byTCP             int  // bytes that the receiver has not read
	tcpSince                   bool // something was sent over TCP since the last redirect
}

type model struct {
	config  configEntry
	ends    [2]modelEnd // by sender
	stopped bool
}

// send reports whether a message is redirected.
func (m *model) send(from, size int) bool {
	e, peer := &m.ends[from], &m.ends[1-from]
	if m.redirects(e, peer, size) {
		if e.byQueue == 0 {
			e.queued = 0
		}
		e.queued += size
		e.byQueue += size
		e.redirects++
		e.tcpSince = false
		return true
	}
	e.byTCP += size
	e.tcpSince = true
	return false
}

func (m *model) redirects(e, peer *modelEnd, size int) bool {
	if m.stopped {
		return false
	}
	e.messages++
	if e.seen != peer.messages {
		e.seen, e.run, e.runBytes = peer.messages, 0, 0
		e.turns++
	}
	e.run++
	e.runBytes += uint64(size)
	c := &m.config
	if c.Mode == modeAdaptive && (e.run > c.LeaveMessages || e.runBytes > uint64(c.LeaveBytes)) {
		m.stopped = true
	}
	ordered := e.byTCP == 0 || e.redirects > 0 && !e.tcpSince
	switch {
	case m.stopped, c.Mode == modeOff, !ordered:
		return false
	case c.Mode == modeAll:
		return true
	}
	full := e.byQueue > 0 && uint32(e.queued+size) > c.Backlog
	return e.turns >= c.Warm && e.run <= c.PassMessages && e.runBytes <= uint64(c.PassBytes) && !full
}

// read receives what the other end has sent, redirected data first.
func (m *model) read(from, n int) {
	e := &m.ends[from]
	taken := min(n, e.byQueue)
	e.byQueue -= taken
	e.byTCP -= n - taken
}

// For random messages, reads and configs, the data plane makes the same decision about every message as the model, and
// every byte arrives.
func TestDecidesAsTheModel(t *testing.T) {
	p := accelerate(t, usual)
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { compareWithModel(t, p, rand.New(rand.NewPCG(seed, 6))) })
	}
	p.empty(t)
}

func compareWithModel(t *testing.T, p *plane, r *rand.Rand) {
	config := configEntry{Mode: 1 + r.Uint32N(2), Warm: r.Uint32N(3), PassMessages: 1 + r.Uint32N(6),
		PassBytes: 1 << (8 + r.Uint32N(8)), Retry: 64}
	config.LeaveMessages, config.LeaveBytes = config.PassMessages+r.Uint32N(20), config.PassBytes<<r.Uint32N(4)
	config.Backlog = 1 << (8 + r.Uint32N(8))
	p.configure(config)
	c := p.connect(t)
	m := &model{config: config}
	fds := [2]int{c.client, c.server}
	var sent [2][]byte // not read yet
	for step := range 400 {
		from := r.IntN(2)
		size := 1 << r.IntN(14)
		size = 1 + r.IntN(size)
		if r.IntN(3) > 0 && len(sent[from])+size < 60000 {
			data := noise(size)
			c.send(fds[from], data)
			sent[from] = append(sent[from], data...)
			redirected := m.send(from, size)
			if e, _ := p.end(fds[from]); e.Redirects != m.ends[from].redirects {
				t.Fatalf("step %d: %d bytes from %d; the model says redirected: %t\nmodel %+v\nkernel %+v\n%+v", step, size, from,
					redirected, m, e, config)
			}
			continue
		}
		n := len(sent[from])
		if n > 0 && r.IntN(2) == 0 {
			n = 1 + r.IntN(n)
		}
		if got := c.receive(fds[1-from], n); !bytes.Equal(got, sent[from][:n]) {
			t.Fatalf("step %d: %s", step, difference(got, sent[from][:n]))
		}
		sent[from] = sent[from][n:]
		m.read(from, n)
	}
	for from := range 2 {
		unix.Shutdown(fds[from], unix.SHUT_WR)
		if got := c.receive(fds[1-from], len(sent[from])); !bytes.Equal(got, sent[from]) {
			t.Fatalf("at the end: %s", difference(got, sent[from]))
		}
	}
}
