// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// milliseconds is a time as configEntry.Idle has it.
func milliseconds(d time.Duration) uint32 { return uint32(d >> 20) }

// resting has pairs go out of the map after that time, and come back.
func resting(t *testing.T, idle time.Duration) *plane {
	c := usual
	c.Idle = milliseconds(idle)
	p := accelerate(t, c)
	p.tend(t)
	return p
}

// tend is what the agent does.
func (p *plane) tend(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Tend(ctx) }()
	t.Cleanup(func() {
		cancel()
		check(t, <-done)
	})
}

// An idle pair goes out of the map, talks by TCP when it talks again, and is back after some turns.
func TestIdle(t *testing.T) {
	p := resting(t, 300*time.Millisecond)
	c := p.connect(t)
	for round := range uint64(3) {
		turns := 0
		for before := p.redirects(c.client) + p.redirects(c.server); p.redirects(c.client)+p.redirects(c.server) < before+4; turns++ {
			c.turn(100)
			if turns > 1000 {
				a, _ := p.end(c.client)
				b, _ := p.end(c.server)
				t.Logf("%+v\n%+v %d", a, b, p.enrolled())
				t.Fatalf("round %d: not back after %d turns: %+v", round, turns, p.counts())
			}
		}
		t.Logf("round %d: redirected after %d turns", round, turns)
		eventually(t, "sockets are still in the map", func() bool { return p.enrolled() == 0 })
		if n := p.counts(); n.Rested != round+1 || n.Returned != round || n.Left != 0 {
			t.Errorf("round %d: %+v", round, n)
		}
		p.plainOnce(c)
	}
	c.close()
	p.empty(t)
}

// plainOnce is less than what an idle pair comes back for.
func (p *plane) plainOnce(c *conn) {
	c.t.Helper()
	before := p.redirects(c.client) + p.redirects(c.server)
	c.turn(5000)
	if n := p.redirects(c.client) + p.redirects(c.server) - before; n != 0 {
		c.t.Fatalf("%d messages were redirected", n)
	}
}

func TestUnreadStays(t *testing.T) {
	p := resting(t, 100*time.Millisecond)
	c := p.connect(t)
	p.warm(c)
	waiting := noise(100)
	c.send(c.client, waiting)
	time.Sleep(1500 * time.Millisecond)
	if e, _ := p.end(c.server); p.enrolled() != 2 || e.Out != in || e.Stop != 0 {
		t.Fatalf("%d sockets are in the map, while one has not read what was redirected: %+v", p.enrolled(), e)
	}
	if got := c.receive(c.server, 100); string(got) != string(waiting) {
		t.Fatal(difference(got, waiting))
	}
	eventually(t, "sockets are still in the map", func() bool { return p.enrolled() == 0 })
	_ = unix.MSG_OOB
}
