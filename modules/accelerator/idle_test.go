// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/pidtest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/seed"
)

// aging removes pairs from the map after that idle time, which is checked more often than by an agent.
func aging(t *testing.T, idle time.Duration) *plane {
	p := agingLater(t, idle)
	p.age(t)
	return p
}

// agingLater starts aging with the call of age, so that connections that wait for a CPU before it stay.
func agingLater(t *testing.T, idle time.Duration) *plane {
	pidtest.NeedPIDs(t)
	c := usual
	c.Idle = uint32(idle >> 20)
	return accelerate(t, c)
}

// age ages idle pairs until the test ends.
func (p *plane) age(t *testing.T) { t.Cleanup(p.ageIdle(t)) }

// ageIdle ages idle pairs as an agent does, until it is killed.
func (p *plane) ageIdle(t *testing.T) (kill func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.AgeIdle(ctx, 10*time.Millisecond) }()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (p *plane) goes(t *testing.T) {
	t.Helper()
	wait.Until(t, "no socket is in the map", func() bool { return p.enrolled() == 0 }, func() any { return p.counts() })
}

// An idle pair is removed from the map, which frees its kernel memory, and continues over TCP. Active pairs stay.
func TestIdle(t *testing.T) {
	p := aging(t, 300*time.Millisecond)
	c := p.connect(t)
	p.warm(c)
	last, pause := time.Now(), time.Duration(0)
	for end := last.Add(time.Second); last.Before(end); time.Sleep(20 * time.Millisecond) {
		c.turn(100)
		pause, last = max(pause, time.Since(last)), time.Now()
	}
	if n := p.counts(); n.Left != 0 || p.enrolled() != 2 {
		if pause < 250*time.Millisecond {
			t.Fatalf("left with pauses of at most %v: %+v", pause, n)
		}
		t.Skipf("had to wait %v for a CPU, which is as long as the connection may be idle", pause)
	}
	p.goes(t)
	if n := p.counts(); n.Left != 1 || p.refused("idle") != 1 {
		t.Errorf("%+v", n)
	}
	for range 20 {
		p.plain(c)
	}
	c.close()
	p.empty(t)
}

// Without pairs the table is not walked; with a new pair it is.
func TestAgingWithoutPairs(t *testing.T) {
	p := aging(t, 60*time.Millisecond)
	unpaired := func() bool { return entries[uint32, uint32](p, "unpaired")[0] == 1 }
	for range 3 {
		wait.Until(t, "a walk has found no pair", unpaired)
		c := p.connect(t)
		p.goes(t)
		c.close()
	}
	p.empty(t)
}

func TestNeverIdle(t *testing.T) {
	p := accelerate(t, usual)
	defer p.ageIdle(t)()
	c := p.connect(t)
	p.warm(c)
	time.Sleep(200 * time.Millisecond) // of many walks, or of a time in which one would age: nothing must happen
	if n := p.enrolled(); n != 2 {
		t.Errorf("%d sockets are in the map", n)
	}
}

// A socket with unread redirected data stays in the map, since the data would be lost.
func TestUnreadStays(t *testing.T) {
	p := agingLater(t, 50*time.Millisecond)
	c := p.connect(t)
	p.warm(c)
	waiting := noise(100)
	c.send(c.client, waiting)
	p.age(t)
	wait.Until(t, "the pair is idle", func() bool { return p.refused("idle") == 1 })
	time.Sleep(100 * time.Millisecond) // several walks
	if e, _ := p.end(c.server); e.Out != 0 {
		t.Errorf("%d sockets are in the map: %+v", p.enrolled(), e)
	}
	if got := c.receive(c.server, 100); !bytes.Equal(got, waiting) {
		t.Fatal(difference(got, waiting))
	}
	p.goes(t)
	c.close()
	p.empty(t)
}

// A thread that waits in recv receives data that arrives after its socket was removed.
func TestWaitsWhileTakenOut(t *testing.T) {
	p := agingLater(t, 50*time.Millisecond)
	c := p.connect(t)
	p.warm(c)
	done := blocks(unix.SYS_RECVFROM, func() error {
		n, _, err := unix.Recvfrom(c.server, make([]byte, 200), 0)
		if err == nil && n != 100 {
			err = fmt.Errorf("%d bytes", n)
		}
		return err
	})
	p.age(t)
	p.goes(t)
	c.send(c.client, make([]byte, 100))
	c.within("receive", func() error { return <-done })
	c.close()
	p.empty(t)
}

// If an agent is killed after it has marked idle sockets and before it has removed them, they stay, over TCP, until the
// next agent starts.
func TestAgentKilledWhileTakingOut(t *testing.T) {
	pidtest.NeedPIDs(t)
	c0 := usual
	c0.Idle = 50
	p := accelerate(t, c0)
	c := p.connect(t)
	p.warm(c)
	wait.Until(t, "the walk finds the idle pair", func() bool {
		_, err := p.Programs()["age"].Run(&ebpf.RunOptions{})
		check(t, err)
		e, _ := p.end(c.client)
		return e.Out == 1
	})
	if n := p.enrolled(); n != 2 {
		t.Fatalf("%d sockets are in the map", n)
	}
	p.plain(c)
	p.plain(c)
	defer p.ageIdle(t)()
	p.goes(t)
	p.plain(c)
	c.close()
	p.empty(t)
}

// Without an agent, sockets remain in the map.
func TestNoAgent(t *testing.T) {
	pidtest.NeedPIDs(t)
	c0 := usual
	c0.Idle = 50
	p := accelerate(t, c0)
	p.ageIdle(t)()
	c := p.connect(t)
	p.warm(c)
	time.Sleep(200 * time.Millisecond) // of many walks, or of a time in which one would age: nothing must happen
	if n := p.enrolled(); n != 2 {
		t.Errorf("%d sockets are in the map", n)
	}
	p.warm(c)
}

// Hundreds of connections pause for about the idle time, so that they send while they are removed. Meanwhile the agent
// is killed repeatedly; at the end the module is removed under traffic.
func TestIdleIntegrity(t *testing.T) {
	pidtest.NeedPIDs(t)
	const idle = 60 * time.Millisecond
	c := usual
	c.Idle = uint32(idle >> 20)
	p, first := accelerate(t, c), seed.Of(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	go serve(t, l)
	kill := p.ageIdle(t)
	var over atomic.Bool
	var workers sync.WaitGroup
	for worker := range uint64(300) {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(first, worker))
			for !over.Load() {
				if err := talkAndPause(l.Addr().String(), &over, idle, r); err != nil {
					t.Errorf("client %d: %v", worker, err)
				}
			}
		})
	}
	killed, n := 0, countsEntry{}
	for end := time.Now().Add(patience); (killed < 4 || n.Left < 1000) && time.Now().Before(end); killed++ {
		time.Sleep(700 * time.Millisecond) // connections age
		kill()
		time.Sleep(50 * time.Millisecond) // traffic without an agent
		kill = p.ageIdle(t)
		n = p.counts()
	}
	_, err = p.Drain()
	check(t, err)
	time.Sleep(500 * time.Millisecond) // they continue
	over.Store(true)
	workers.Wait()
	kill()
	t.Logf("%+v", n)
	if n.Left < 1000 {
		t.Errorf("nothing to see: %+v", n)
	}
	p.empty(t)
}

// talkAndPause runs bursts of rounds with pauses on a connection.
func talkAndPause(addr string, over *atomic.Bool, idle time.Duration, r *rand.Rand) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	for burst := 0; burst < 8 && !over.Load(); burst++ {
		for range 1 + r.IntN(8) {
			if _, err := exchange(c, r, 13); err != nil {
				return err
			}
		}
		// About the idle time, a little less or more.
		time.Sleep(idle - 15*time.Millisecond + time.Duration(r.Int64N(int64(40*time.Millisecond))))
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	if n, err := c.Read(make([]byte, 10)); n != 0 {
		return errors.Join(errors.New("bytes after the end"), err)
	}
	return nil
}
