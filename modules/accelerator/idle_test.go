// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/fusetest"
	"github.com/kerb-edge/kerb/internal/lab/pidtest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/seed"
)

// resting has pairs go out of the map after that time, which is examined more often than an agent does.
func resting(t *testing.T, idle time.Duration) *plane {
	pidtest.NeedPIDs(t)
	c := usual
	c.Idle = uint32(idle >> 20)
	p := accelerate(t, c)
	t.Cleanup(p.ageIdle(t))
	return p
}

// ageIdle is what an agent does, until it is killed.
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

// back takes turns until both ends redirect again.
func (p *plane) back(c *conn) {
	c.t.Helper()
	from := [2]uint64{p.redirects(c.client), p.redirects(c.server)}
	for end := time.Now().Add(wait.Patience); time.Now().Before(end); {
		if c.turn(100); p.redirects(c.client) > from[0]+1 && p.redirects(c.server) > from[1]+1 {
			return
		}
	}
	c.t.Fatalf("is not redirected again: %+v", p.counts())
}

func (p *plane) rests(t *testing.T) {
	t.Helper()
	wait.Until(t, "no socket is in the map", func() bool { return p.enrolled() == 0 }, func() any { return p.counts() })
}

// An idle pair goes out of the map, where the kernel keeps nothing for it. It talks by TCP when it talks again, and is
// back after some turns; not for one turn now and then.
func TestIdle(t *testing.T) {
	p := resting(t, 300*time.Millisecond)
	c := p.connect(t)
	for round := range uint64(3) {
		p.back(c)
		p.rests(t)
		// more often, when it had to wait for a CPU
		if n := p.counts(); n.Rested <= round || n.Returned != n.Rested-1 || n.Left != 0 {
			t.Fatalf("round %d: %+v", round, n)
		}
		before := p.redirects(c.client)
		for range 2 {
			c.turn(5000)
			time.Sleep(400 * time.Millisecond)
		}
		if p.redirects(c.client) != before || p.enrolled() != 0 {
			t.Fatalf("round %d: one turn now and then brought it back", round)
		}
	}
	c.close()
	p.empty(t)
}

// Who talks rarely is not disturbed by us any more: TCP does not call for it. When it talks often again it is back all
// the same, and a stream leaves permanently.
func TestRare(t *testing.T) {
	p := resting(t, 60*time.Millisecond)
	c := p.connect(t)
	p.back(c)
	p.rests(t)
	for range 5 {
		c.turn(100)
		time.Sleep(100 * time.Millisecond)
		if e, _ := p.end(c.client); e.Out != aside {
			t.Fatalf("one turn now and then brought it back: %+v", e)
		}
	}
	if e, _ := p.end(c.client); e.Rare != 2 {
		t.Fatalf("%+v", e)
	}
	returned := p.counts().Returned
	wait.Until(t, "the pair returns", func() bool {
		c.turn(100)
		return p.counts().Returned > returned
	})
	p.back(c)
	for range 100 {
		c.send(c.client, make([]byte, 100))
	}
	c.receive(c.server, 100*100)
	p.rests(t)
	if e, _ := p.end(c.client); e.Out != gone || p.refused("stream") != 1 || p.counts().Left != 1 {
		t.Errorf("%+v: %+v", e, p.counts())
	}
	c.close()
	p.empty(t)
}

// Without pairs the table is not walked; with the next pair it is again.
func TestNobodyToLookAfter(t *testing.T) {
	p := resting(t, 60*time.Millisecond)
	unpaired := func() bool { return entries[uint32, uint32](p, "unpaired")[0] == 1 }
	for range 3 {
		wait.Until(t, "a walk has found no pair", unpaired)
		c := p.connect(t)
		p.back(c)
		p.rests(t)
		p.back(c)
		wait.Until(t, "a walk looks for pairs", func() bool { return !unpaired() }) // a walk says so before it begins
		c.close()
	}
	p.empty(t)
}

func TestNeverIdle(t *testing.T) {
	p := accelerate(t, usual)
	defer p.ageIdle(t)()
	c := p.connect(t)
	p.warm(c)
	time.Sleep(200 * time.Millisecond)
	if n := p.enrolled(); n != 2 {
		t.Errorf("%d sockets are in the map", n)
	}
}

// What would be lost stays: a socket that has not read what was redirected, and one that a thread reads from.
func TestInUseStays(t *testing.T) {
	c0 := usual
	c0.Idle = 50
	p := accelerate(t, c0)
	for name, use := range map[string]func(c *conn) (read func()){
		"unread": func(c *conn) func() {
			waiting := noise(100)
			c.send(c.client, waiting)
			return func() {
				if got := c.receive(c.server, 100); !bytes.Equal(got, waiting) {
					t.Fatal(difference(got, waiting))
				}
			}
		},
		"a thread waits": func(c *conn) func() {
			done, thread := make(chan error, 1), make(chan int, 1)
			go func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				thread <- unix.Gettid()
				_, _, err := unix.Recvfrom(c.server, make([]byte, 100), 0)
				done <- err
			}()
			sleeps(t, <-thread)
			return func() {
				c.send(c.client, make([]byte, 100))
				c.within("receive", func() error { return <-done })
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := p.connect(t)
			p.warm(c)
			read := use(c)
			kill := p.ageIdle(t)
			defer kill()
			time.Sleep(300 * time.Millisecond)
			if e, _ := p.end(c.server); p.enrolled() != 2 || e.Out != in || e.Stop != 0 {
				t.Errorf("%d sockets are in the map: %+v", p.enrolled(), e)
			}
			read()
			p.rests(t)
			c.close()
			p.empty(t)
		})
	}
}

// An agent that is killed after it has found idle sockets, before it takes them out: they stay, by TCP, until the next
// comes.
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
		return e.Out == aside
	})
	if n := p.enrolled(); n != 2 {
		t.Fatalf("%d sockets are in the map", n)
	}
	p.plain(c)
	p.plain(c)
	defer p.ageIdle(t)()
	p.rests(t)
	p.back(c)
	p.rests(t)
	c.close()
	p.empty(t)
}

// Without an agent who went stays with TCP, and who is in the map stays in there.
func TestNoAgent(t *testing.T) {
	pidtest.NeedPIDs(t)
	c0 := usual
	c0.Idle = 50
	p := accelerate(t, c0)
	kill := p.ageIdle(t)
	away := p.connect(t)
	p.back(away)
	p.rests(t)
	kill()
	there := p.connect(t)
	p.warm(there)
	time.Sleep(200 * time.Millisecond)
	if n := p.enrolled(); n != 2 {
		t.Errorf("%d sockets are in the map", n)
	}
	for range 10 {
		p.plain(away)
	}
	p.warm(there)
	defer p.ageIdle(t)()
	p.back(away)
}

// What a socket is asked back by may be another one by now.
func TestReturnsOnlyItself(t *testing.T) {
	p := resting(t, 50*time.Millisecond)
	c := p.connect(t)
	p.back(c)
	p.rests(t)
	returned := p.counts().Returned
	moved, err := unix.FcntlInt(uintptr(c.server), unix.F_DUPFD_CLOEXEC, 0)
	check(t, err)
	other := socket(t, &unix.SockaddrInet4{})
	check(t, unix.Dup3(other, c.server, unix.O_CLOEXEC)) // the number that it was known by
	defer unix.Close(other)
	number := c.server
	c.server = moved
	defer unix.Close(number)
	for range 20 {
		c.turn(100)
		time.Sleep(5 * time.Millisecond)
	}
	if e, _ := p.end(c.server); e.Out != aside || p.counts().Returned != returned {
		t.Errorf("%+v", e)
	}
}

// A file that has a socket's number by now is closed by who has examined it, which its file system need not answer to.
// Others come back all the same.
func TestReturnsDespiteAFileSystem(t *testing.T) {
	p := resting(t, 50*time.Millisecond)
	fs := fusetest.New(t)
	file := fs.Open(t)
	defer file.Close()
	defer fs.End()
	c, other := p.connect(t), p.connect(t)
	p.back(c)
	p.back(other)
	p.rests(t)
	moved, err := unix.FcntlInt(uintptr(c.server), unix.F_DUPFD_CLOEXEC, 0)
	check(t, err)
	check(t, unix.Dup3(int(file.Fd()), c.server, unix.O_CLOEXEC)) // the number that it was known by
	number := c.server
	c.server = moved
	defer unix.Close(number)
	defer fs.End()
	fs.StopAnswering()
	for range 20 {
		c.turn(100)
		time.Sleep(5 * time.Millisecond)
	}
	from := p.redirects(other.client)
	wait.Until(t, "the other pair returns", func() bool {
		other.turn(100)
		return p.redirects(other.client) > from
	})
}

// A module that leaves takes those along that rest.
func TestDrainWhileResting(t *testing.T) {
	p := resting(t, 50*time.Millisecond)
	var conns []*conn
	for range 20 {
		c := p.connect(t)
		p.back(c)
		conns = append(conns, c)
	}
	p.rests(t)
	for _, c := range conns[:10] {
		p.back(c)
	}
	wait.Until(t, "all sockets are drained", func() bool {
		left, err := p.Drain()
		check(t, err)
		return left == 0
	})
	for _, c := range conns {
		p.plain(c)
		p.plain(c)
	}
	if n := p.enrolled(); n != 0 {
		t.Errorf("%d sockets are in the map", n)
	}
}

// Hundreds of connections whose pauses are about as long as the time of idleness, so that they talk at the very moment
// when they go, and when they come back. Meanwhile the agent is killed now and then; in the end the module leaves while
// they talk.
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
			if err := talkAndPause(l.Addr().String(), &over, idle, r); err != nil {
				t.Errorf("client %d: %v", worker, err)
			}
		})
	}
	killed, n := 0, countsEntry{}
	for end := time.Now().Add(patience); (killed < 4 || n.Rested < 300 || n.Returned < 100) &&
		time.Now().Before(end); killed++ {
		time.Sleep(700 * time.Millisecond)
		kill()
		time.Sleep(50 * time.Millisecond)
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
	if n.Rested < 300 || n.Returned < 100 {
		t.Errorf("nothing to see: %+v", n)
	}
	p.empty(t)
}

// talkAndPause is bursts of some rounds, with pauses.
func talkAndPause(addr string, over *atomic.Bool, idle time.Duration, r *rand.Rand) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	for !over.Load() {
		for range 1 + r.IntN(8) {
			if _, err := exchange(c, r, 13); err != nil {
				return err
			}
		}
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
