// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// consumer is a receiver in C or Go that has opened a class and starts on command. It writes lines in the format of
// testdata/receive.c.
type consumer struct {
	begin io.WriteCloser
	lines *bufio.Scanner
	pid   int
}

func (c *consumer) start() { _, _ = c.begin.Write([]byte("\n")) }

func (c *consumer) next(t *testing.T) string {
	t.Helper()
	if !c.lines.Scan() {
		t.Fatalf("the receiver has ended: %v", c.lines.Err())
	}
	return c.lines.Text()
}

func (c *consumer) expect(t *testing.T, lines ...string) {
	t.Helper()
	for _, want := range lines {
		if got := c.next(t); got != want {
			t.Fatalf("the receiver writes %q, want %q", got, want)
		}
	}
}

type opener func(t *testing.T, m *module, class string, w Wait, count int, extra string) *consumer

// both runs a test with the C library and with this package.
func both(t *testing.T, test func(t *testing.T, open opener)) {
	t.Run("C", func(t *testing.T) {
		program := compileC(t, "receive.c")
		test(t, func(t *testing.T, m *module, class string, w Wait, count int, extra string) *consumer {
			return openC(t, program, m, class, w, count, extra)
		})
	})
	t.Run("Go", func(t *testing.T) { test(t, openGo) })
}

// waitingOrPolling tests both with blocking calls and with polling.
func waitingOrPolling(t *testing.T, test func(t *testing.T, open opener, extra string)) {
	for name, extra := range map[string]string{"wait": "", "poll": "poll"} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, open opener) { test(t, open, extra) })
		})
	}
}

func openC(t *testing.T, program string, m *module, class string, w Wait, count int, extra string) *consumer {
	t.Helper()
	args := []string{m.path, class, strconv.Itoa(int(w)), strconv.Itoa(count)}
	if extra != "" {
		args = append(args, extra)
	}
	cmd := exec.Command(program, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &consumer{in, bufio.NewScanner(out), cmd.Process.Pid}
}

func openGo(t *testing.T, m *module, class string, w Wait, count int, extra string) *consumer {
	begin, command := io.Pipe()
	lines, out := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := receive(m.path, class, w, count, extra, begin, out); err != nil {
			fmt.Fprintf(out, "error %v\n", err)
		}
		_ = out.Close()
	}()
	t.Cleanup(func() {
		_ = begin.Close()
		_ = lines.Close()
		m.say(`{"event": "taken"}`)
		<-ended
	})
	return &consumer{command, bufio.NewScanner(lines), os.Getpid()}
}

// receive is testdata/receive.c in Go.
func receive(path, class string, w Wait, count int, extra string, begin io.Reader, out io.Writer) error {
	r, err := Open(path, class, Options{Wait: w, KeepPriority: true, IdlePoll: extra == "idle_poll"})
	if err != nil {
		return err
	}
	defer r.Close()
	if extra == "control" {
		err = errors.Join(r.Stop(), r.Start(), r.SetAction(Copy), r.SetPriority(6), r.SetMaxBytes(99),
			r.SetDeadline(123456789),
			r.SetPorts(1, 8000, 8010), r.SetPayload(2, 9, []byte{1, 2, 3}, []byte{0xff, 0xf0, 0x0f}))
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "ready")
	if _, err := begin.Read(make([]byte, 1)); err != nil {
		return err
	}
	packets := make([]Packet, 7)
	timeout := time.Duration(-1)
	if extra == "poll" {
		timeout = 0
	}
	for n := 0; n < count; {
		got, err := r.Receive(packets, timeout)
		if err != nil {
			return err
		}
		for _, p := range packets[:got] {
			ordered := 0
			if p.Sent <= p.Received {
				ordered = 1
			}
			if _, err := fmt.Fprintf(out, "packet %d %d %d %d %d %d %d %d %x %d %d %d\n", p.Seq, p.Lost, p.Len, len(p.Frame),
				p.L3, p.L4, p.Payload,
				p.VLAN, uint32(p.Flags), p.Ifindex, sum(p.Frame), ordered); err != nil {
				return err
			}
		}
		n += got
	}
	s := r.Stats()
	fmt.Fprintln(out, "stats", s.Received, s.Lost, s.Late)
	return nil
}

func sum(frame []byte) (s uint32) {
	for _, b := range frame {
		s = s*31 + uint32(b)
	}
	return s
}

// packet returns the line of the i-th frame with a sequence number.
func packet(i, seq, lost int) string {
	f := frame(i)
	return fmt.Sprintf("packet %d %d %d %d 14 34 42 %d %x 7 %d 1", seq, lost, len(f), len(f), 0x123,
		uint32(Stolen|IP4|HasL4), sum(f))
}

func TestReceivesInOrder(t *testing.T) {
	both(t, func(t *testing.T, open opener) {
		for _, w := range []Wait{Adaptive, Spin, Sleep} {
			m := newModule(t)
			c := open(t, m, "ctrl", w, 300, "")
			c.expect(t, "ready")
			c.start()
			for i := range 300 {
				m.emit(i, i+1)
				if i%10 == 9 { // in tens, wrapping around the ring several times
					for j := i - 9; j <= i; j++ {
						c.expect(t, packet(j, j, 0))
					}
				}
			}
			c.expect(t, "stats 300 0 0")
		}
	})
}

func TestReportsLosses(t *testing.T) {
	both(t, func(t *testing.T, open opener) {
		m := newModule(t)
		c := open(t, m, "ctrl", Adaptive, fits+2, "")
		c.expect(t, "ready")
		m.emit(0, fits+9)
		if n := m.numbers(); n.Lost != 9 {
			t.Fatalf("%d packets of %d were lost, want 9", n.Lost, n.Seq)
		}
		c.start()
		for i := range fits {
			c.expect(t, packet(i, i, 0))
		}
		for ; !m.taken(); time.Sleep(time.Millisecond) {
		}
		m.emit(50, 52)
		c.expect(t, packet(50, fits+9, 9), packet(51, fits+10, 0), fmt.Sprintf("stats %d 9 0", fits+2))
	})
}

// TestNeverMissesAWakeUp delivers each packet as soon as the previous one is released, while the receiver goes to
// sleep.
func TestNeverMissesAWakeUp(t *testing.T) {
	both(t, func(t *testing.T, open opener) {
		const count = 3000
		for _, w := range []Wait{Sleep, Adaptive} {
			m := newModule(t)
			c := open(t, m, "ctrl", w, count, "")
			c.expect(t, "ready")
			c.start()
			for i := range count {
				m.emit(i, i+1)
				c.expect(t, packet(i, i, 0))
			}
			c.expect(t, fmt.Sprintf("stats %d 0 0", count))
		}
	})
}

// A new configuration has a new ring: packets in the old ring are received first, and sequence numbers continue.
func TestFollowsNewConfiguration(t *testing.T) {
	waitingOrPolling(t, func(t *testing.T, open opener, extra string) {
		m := newModule(t)
		c := open(t, m, "ctrl", Adaptive, 6, extra)
		c.expect(t, "ready")
		<-m.opened
		m.emit(0, 4)
		m.configure(2)
		m.say(`{"event": "moved"}`)
		c.start()
		c.expect(t, packet(0, 0, 0), packet(1, 1, 0), packet(2, 2, 0), packet(3, 3, 0))
		<-m.opened
		m.emit(4, 6)
		c.expect(t, packet(4, 0, 0), packet(5, 1, 0), "stats 6 0 0")
	})
}

// A restarted control plane passes the same ring.
func TestFollowsRestart(t *testing.T) {
	waitingOrPolling(t, func(t *testing.T, open opener, extra string) {
		m := newModule(t)
		c := open(t, m, "ctrl", Sleep, 4, extra)
		c.expect(t, "ready")
		<-m.opened
		c.start()
		m.emit(0, 2)
		c.expect(t, packet(0, 0, 0), packet(1, 1, 0))
		m.say("")
		<-m.opened
		m.emit(2, 4)
		c.expect(t, packet(2, 2, 0), packet(3, 3, 0), "stats 4 0 0")
	})
}

func TestReportsTakeover(t *testing.T) {
	waitingOrPolling(t, func(t *testing.T, open opener, extra string) {
		m := newModule(t)
		c := open(t, m, "ctrl", Adaptive, 2, extra)
		c.expect(t, "ready")
		<-m.opened
		m.emit(0, 1)
		m.say(`{"event": "taken"}`)
		c.start()
		c.expect(t, packet(0, 0, 0))
		if line := c.next(t); !strings.HasPrefix(line, "error another program has taken") {
			t.Errorf("the receiver writes %q", line)
		}
	})
}

// A stopped program that continues does not move the position of the program that has taken over its class.
func TestLeavesTheRingToTheNext(t *testing.T) {
	both(t, func(t *testing.T, open opener) {
		m := newModule(t)
		c := open(t, m, "ctrl", Adaptive, 2, "")
		c.expect(t, "ready")
		<-m.opened
		m.emit(0, 2)
		fd := m.kernel.Maps["ring"].FD()
		end := *word(mapPage(t, fd, os.Getpagesize(), unix.PROT_READ))
		scribble(t, fd, 0, end-8)
		m.say(`{"event": "taken"}`)
		c.start()
		c.expect(t, packet(0, 0, 0), packet(1, 1, 0))
		c.next(t) // the statistics; then it closes
		c.lines.Scan()
		if now := *word(mapPage(t, fd, 0, unix.PROT_READ)); now != end-8 {
			t.Errorf("the position is %d, want %d", now, end-8)
		}
	})
}

func TestReportsRefusal(t *testing.T) {
	both(t, func(t *testing.T, open opener) {
		m := newModule(t)
		open(t, m, "log", Adaptive, 1, "").expect(t, `error there is no class "log" that programs can open; there are: ctrl`)
	})
	if _, err := Open(t.TempDir()+"/none", "ctrl", Options{KeepPriority: true}); err == nil ||
		!strings.Contains(err.Error(), "is the module applied") {
		t.Errorf("without a module: %v", err)
	}
}

func TestControlMessages(t *testing.T) {
	both(t, func(t *testing.T, open opener) {
		m := newModule(t)
		open(t, m, "ctrl", Adaptive, 1, "control").expect(t, "ready")
		m.send(make([]byte, 14))
		want := controlEntry{Op: opPayload, Index: 2, Value: 9<<16 | 3, Bytes: [8]byte{1, 2, 3},
			Mask: [8]byte{0xff, 0xf0, 0x0f}}
		n := m.numbers()
		if n.Controls != 8 {
			t.Errorf("%d control messages came, want 8", n.Controls)
		}
		if diff := cmp.Diff(want, n.Last); diff != "" {
			t.Error(diff)
		}
	})
}

func TestLatePacketsAreNoted(t *testing.T) {
	both(t, func(t *testing.T, open opener) {
		m := newModule(t)
		m.state.Deadline = 1
		c := open(t, m, "ctrl", Adaptive, 20, "")
		c.expect(t, "ready")
		m.emit(0, 20)
		c.start()
		for i := range 20 {
			c.expect(t, packet(i, i, 0))
		}
		c.expect(t, "stats 20 0 20")
		log := &m.state.Log
		if log.Lates != 3 { // batches of 7
			t.Fatalf("%d were noted, want 3", log.Lates)
		}
		for i, want := range []struct{ seq, queued int }{{0, 6}, {7, 6}, {14, 5}} {
			if l := log.Last[i]; l.Seq != uint64(want.seq) || l.Queued != uint32(want.queued) || l.T1 == 0 || l.T2 <= l.T1 {
				t.Errorf("entry %d is %+v", i, l)
			}
		}
		var packets uint64
		for _, n := range log.Delay {
			packets += n
		}
		if packets != 20 || log.Longest == 0 {
			t.Errorf("the histogram has %d packets, the longest delay is %d ns", packets, log.Longest)
		}
	})
}

// When packets stop, a receiver stops polling.
func TestIdleReceiverSleeps(t *testing.T) {
	m := newModule(t)
	r, err := Open(m.path, "ctrl", Options{KeepPriority: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	packets := make([]Packet, 4)
	for i := range 100 {
		m.emit(i, i+1)
		if n, err := r.Receive(packets, time.Second); n != 1 || err != nil {
			t.Fatalf("%d packets, %v", n, err)
		}
	}
	if n, err := r.Receive(packets, 50*time.Millisecond); n != 0 || err != nil {
		t.Fatalf("%d packets, %v", n, err)
	}
	before := r.Stats()
	if n, err := r.Receive(packets, 100*time.Millisecond); n != 0 || err != nil {
		t.Fatalf("%d packets, %v", n, err)
	}
	if s := r.Stats(); s.Spun != before.Spun || s.Rested != before.Rested || s.Slept > before.Slept+2 {
		t.Errorf("without packets the receiver did %+v, before it %+v", s, before)
	}
}

// A receiver that was stopped while it slept continues.
func TestStoppedReceiverContinues(t *testing.T) {
	m := newModule(t)
	c := openC(t, compileC(t, "receive.c"), m, "ctrl", Sleep, 2, "")
	c.expect(t, "ready")
	c.start()
	for i := range 2 {
		for ; atomic.LoadUint32(&m.state.Waiting) == 0; time.Sleep(time.Millisecond) {
		}
		if err := errors.Join(unix.Kill(c.pid, unix.SIGSTOP), unix.Kill(c.pid, unix.SIGCONT)); err != nil {
			t.Fatal(err)
		}
		m.emit(i, i+1)
		c.expect(t, packet(i, i, 0))
	}
}

// With IdlePoll, idle CPUs poll while packets arrive, and no longer.
func TestIdleCPUsPoll(t *testing.T) {
	device, err := os.Open("/dev/cpu_dma_latency")
	if err != nil {
		t.Skip(err)
	}
	defer device.Close()
	becomes := func(polls bool) bool {
		us := make([]byte, 4)
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if _, err := device.ReadAt(us, 0); err != nil {
				t.Fatal(err)
			}
			if binary.NativeEndian.Uint32(us) == 0 == polls {
				return true
			}
		}
		return false
	}
	await := func(t *testing.T, polls bool) {
		t.Helper()
		if !becomes(polls) {
			t.Fatalf("idle CPUs poll: %v", !polls)
		}
	}
	if !becomes(false) {
		t.Skip("another program has idle CPUs poll")
	}
	both(t, func(t *testing.T, open opener) {
		for _, w := range []Wait{Sleep, Adaptive} {
			m := newModule(t)
			c := open(t, m, "ctrl", w, 3, "idle_poll")
			c.expect(t, "ready")
			c.start()
			await(t, false)
			m.emit(0, 1)
			c.expect(t, packet(0, 0, 0))
			await(t, true)
			await(t, false) // no more packets
			m.emit(1, 2)
			c.expect(t, packet(1, 1, 0))
			await(t, true)
			m.emit(2, 3) // the program exits
			c.expect(t, packet(2, 2, 0), "stats 3 0 0")
			await(t, false)
		}
	})
}

// Garbage that the previous program has written to the shared memory does not affect the next one after it has opened
// the class.
func TestRecoversFromGarbage(t *testing.T) {
	for name, position := range map[string]uint64{"odd": 12345, "within a record": 24, "ahead": 1 << 40,
		"all bits": ^uint64(0)} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, open opener) {
				m := newModule(t)
				m.emit(0, 3)
				scribble(t, m.kernel.Maps["ring"].FD(), 0, position)
				scribble(t, m.kernel.Maps["controls"].FD(), os.Getpagesize(), position)
				c := open(t, m, "ctrl", Adaptive, 2, "control")
				c.expect(t, "ready")
				lost := m.numbers().Lost
				c.start()
				m.emit(3, 5)
				c.expect(t, packet(3, 3, 0), packet(4, 4, 0))
				if n := m.numbers(); n.Lost != lost || n.Controls != 8 {
					t.Errorf("%d packets were lost, %d control messages came, want 8", n.Lost-lost, n.Controls)
				}
			})
		})
	}
}

func scribble(t *testing.T, fd, at int, value uint64) {
	t.Helper()
	atomic.StoreUint64(word(mapPage(t, fd, at, unix.PROT_READ|unix.PROT_WRITE)), value)
}

func mapPage(t *testing.T, fd, at, rights int) []byte {
	t.Helper()
	page, err := unix.Mmap(fd, int64(at), os.Getpagesize(), rights, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(page) })
	return page
}

// A program can write only its class's page, the consumer's position of the ring, and the ring of control messages.
func TestWritesItsOwnOnly(t *testing.T) {
	if os.Getpagesize() != pageBytes {
		t.Skip("rings are longer with pages of this size")
	}
	m := newModule(t)
	c := openC(t, compileC(t, "receive.c"), m, "ctrl", Adaptive, 1, "")
	c.expect(t, "ready")
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", c.pid))
	if err != nil {
		t.Fatal(err)
	}
	writable := uint64(0)
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if !strings.Contains(line, "rw-s") || !strings.Contains(line, "bpf-map") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			t.Fatal(err)
		}
		writable += (to - from) / pageBytes
	}
	if want := uint64(1 + 1 + 3); writable != want {
		t.Errorf("%d pages, want %d:\n%s", writable, want, maps)
	}
}
