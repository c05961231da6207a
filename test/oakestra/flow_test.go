// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// flow is a TCP connection and a UDP socket from one service to the service IP of another, kept over many steps.
type flow struct {
	from     *instance
	service  string
	tcp, udp net.Conn
	peer     string // identity of the container at the other end of the TCP connection

	sent, lost int // datagrams of the current step
	broken     error
	all        int // datagrams of steps that did not affect it
}

const (
	flows = 8
	// pause is the interval between the packets of a flow. All flows together must leave CPU time to the agents.
	pause = 10 * time.Millisecond
	// lostAfter is the time without a reply after which a datagram counts as lost. Nothing delays one that long.
	lostAfter = 3 * time.Second
)

var texts atomic.Int64

// uniqueText returns a unique packet content.
func uniqueText() string { return fmt.Sprintf("p%d", texts.Add(1)) }

// openFlows closes flows whose ends no longer exist, and opens others instead.
func (m *model) openFlows() {
	m.Helper()
	m.flows = slices.DeleteFunc(m.flows, func(f *flow) bool {
		if m.isOpen(f) {
			return false
		}
		f.close()
		return true
	})
	for len(m.flows) < flows {
		from := pick(m, m.all())
		to := pick(m, m.all())
		if to.service == from.service {
			continue
		}
		m.flows = append(m.flows, m.open(from, to.service))
	}
}

func (m *model) open(from *instance, service string) *flow {
	m.Helper()
	f, address := &flow{from: from, service: service}, m.cluster.Addresses(service)[m.rng.IntN(2)]
	if _, err := from.container.reach("tcp", address, "reach"); err != nil {
		m.Fatal(err)
	}
	var err error
	if f.tcp, err = from.container.dial("tcp", address); err == nil {
		var got answer
		got, err = exchange(f.tcp, uniqueText(), lostAfter)
		f.peer = got.identity
	}
	if err == nil {
		f.udp, err = from.container.dial("udp", address)
	}
	if err != nil {
		m.Fatalf("%s to %s: %v", from.container.identity, service, err)
	}
	m.awaitUDP(f)
	return f
}

// awaitUDP sends until a datagram is answered: the worker of an instance that is new to this client drops the first
// ones, until it knows their sender.
func (m *model) awaitUDP(f *flow) {
	m.Helper()
	var err error
	for range 100 {
		if _, err = exchange(f.udp, uniqueText(), 200*time.Millisecond); err == nil {
			return
		}
	}
	m.Errorf("%s to %s: no datagram is answered: %v", f.from.container.identity, f.service, err)
}

func (f *flow) close() {
	_ = f.tcp.Close()
	_ = f.udp.Close()
}

func (m *model) closeFlows() {
	for _, f := range m.flows {
		f.close()
	}
}

func (m *model) packets() (n int) {
	for _, f := range m.flows {
		n += f.all
	}
	return n
}

// isOpen reports whether both ends of a TCP connection run.
func (m *model) isOpen(f *flow) bool {
	runs := func(identity string) bool {
		return slices.ContainsFunc(m.all(), func(i *instance) bool { return i.container.identity == identity })
	}
	return runs(f.from.container.identity) && runs(f.peer)
}

// run makes all flows send until the returned function is called, which checks them: flows that the step did not affect
// have lost nothing, no connection is broken while both ends run, and datagrams of affected services are all answered
// again.
func (m *model) run() func(step string, touched map[string]bool) {
	done := make(chan struct{})
	var all sync.WaitGroup
	for _, f := range m.flows {
		f.sent, f.lost, f.broken = 0, 0, nil
		all.Go(func() { f.send(done) })
	}
	return func(step string, touched map[string]bool) {
		m.Helper()
		close(done)
		all.Wait()
		for _, f := range m.flows {
			if !m.isOpen(f) {
				continue
			}
			name := fmt.Sprintf("%s: %s to %s", step, f.from.container.identity, f.service)
			if f.broken != nil {
				m.Errorf("%s: the connection with %s: %v", name, f.peer, f.broken)
			}
			if touched[f.service] || touched[f.from.service] {
				m.awaitUDP(f)
				m.checkLossless(name, f)
				continue
			}
			f.all += f.sent
			if f.lost > 0 {
				m.Errorf("%s: %d of %d datagrams lost", name, f.lost, f.sent)
			}
		}
	}
}

// checkLossless sends datagrams after the workers know of a change.
func (m *model) checkLossless(name string, f *flow) {
	m.Helper()
	for n := range 10 {
		if _, err := exchange(f.udp, uniqueText(), lostAfter); err != nil {
			m.Errorf("%s: datagram %d after the change: %v", name, n, err)
			return
		}
	}
}

func (f *flow) send(done chan struct{}) {
	for {
		if _, err := exchange(f.udp, uniqueText(), lostAfter); err != nil {
			f.lost++
		}
		f.sent++
		if f.broken == nil {
			_, f.broken = exchange(f.tcp, uniqueText(), 2*lostAfter)
		}
		select {
		case <-done:
			return
		case <-time.After(pause):
		}
	}
}
