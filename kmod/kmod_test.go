// SPDX-License-Identifier: Apache-2.0

package kmod

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
	"github.com/kerb-edge/kerb/internal/seed"
)

const (
	object   = "kerb_intercept.ko"
	port     = 7000
	ringSize = 1 << 20
)

// load loads the module for one test. It is built for emulated machines; other kernels skip the test.
func load(t *testing.T) {
	t.Helper()
	if os.Getenv("KERB_MATRIX") == "" {
		t.Skip("loads a kernel module: make test-kmod runs it in emulated machines")
	}
	if err := Load(object); errors.Is(err, os.ErrNotExist) {
		t.Skip("no module was built for this kernel: make test-kmod")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Unload(); err != nil {
			t.Error("the module stays:", err)
		}
	})
}

// taints are the kernel's taint flags for a bad page, an oops, a warning and a lockup.
const taints = 1<<5 | 1<<7 | 1<<9 | 1<<14

// After all tests, the kernel has no new taint flags. Pages are checked when they leave the per-CPU lists.
func TestMain(m *testing.M) {
	before := tainted()
	code := m.Run()
	os.WriteFile("/proc/sys/vm/compact_memory", []byte("1"), 0)
	if after := tainted(); after&^before != 0 {
		fmt.Printf("the kernel is tainted: %#x, before %#x\n", after, before)
		code = 1
	}
	os.Exit(code)
}

func tainted() int {
	text, _ := os.ReadFile("/proc/sys/kernel/tainted")
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n & taints
}

// testLab is a sending host and a receiving node.
type testLab struct {
	lab    *netlab.Lab
	host   *netlab.Host
	socket *net.UDPConn // socket of the node, bound to the port
}

func open(t *testing.T) *testLab {
	t.Helper()
	return openWith(t, netlab.HostOptions{Routed: true, TxChecksumOff: true})
}

func openWith(t *testing.T, options netlab.HostOptions) *testLab {
	t.Helper()
	const prefix = "kbkm"
	lab, err := netlab.NewIn(prefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	b := &testLab{lab: lab}
	if b.host, err = lab.Host("sender", options); err != nil {
		t.Fatal(err)
	}
	err = lab.Node().Do(func() error {
		b.socket, err = net.ListenUDP("udp", &net.UDPAddr{Port: port})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := b.socket.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.socket.Close() })
	return b
}

// rule returns a rule for the UDP port of the node.
func (b *testLab) rule() Rule {
	return Rule{Ifindex: uint32(b.host.OuterIndex()), Ring: ringSize, Action: Copy, Slot: 3, Watchdog: uint64(time.Hour),
		Protocol: unix.IPPROTO_UDP, FirstPort: port, LastPort: port}
}

func (b *testLab) attach(t *testing.T, rule Rule) (*os.File, *reader) {
	t.Helper()
	f := b.try(rule)
	if f.err != nil {
		t.Fatal(f.err)
	}
	t.Cleanup(func() { f.file.Close() })
	return f.file, read(t, f.file, int(rule.Ring))
}

// reader is a ring with its state page.
type reader struct {
	*Ring
	state []byte
}

func read(t *testing.T, f *os.File, size int) *reader {
	t.Helper()
	ring, err := OpenRing(int(f.Fd()), size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ring.Close() })
	page := os.Getpagesize()
	state, err := unix.Mmap(int(f.Fd()), int64(2*page+2*size), page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal("state:", err)
	}
	t.Cleanup(func() { unix.Munmap(state) })
	return &reader{ring, state}
}

// wait marks the program as waiting, and reports whether the ring is still empty.
func (r *reader) wait() bool {
	const waiting = 64 // offset in struct icpt_state
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&r.state[waiting])), 1)
	return r.Empty()
}

// await is Next for an expected record, which a softirq may deliver late.
func (r *reader) await() (rec Record, frame []byte, ok bool) {
	for range 2000 {
		if rec, frame, ok = r.Next(); ok {
			break
		}
		time.Sleep(time.Millisecond) // polling interval
	}
	return rec, frame, ok
}

type attached struct {
	file *os.File
	err  error
}

func (b *testLab) try(rule Rule) (a attached) {
	a.err = b.lab.Node().Do(func() (err error) { a.file, err = Attach(rule); return err })
	return a
}

func (b *testLab) dial(t *testing.T, to netip.Addr, port int) net.Conn {
	t.Helper()
	var conn net.Conn
	err := b.host.Do(func() (err error) {
		conn, err = net.Dial("udp", net.JoinHostPort(to.String(), fmt.Sprint(port)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// payload returns the payload of packet n: its number, and bytes and a size that depend on it.
func payload(n int) []byte {
	p := make([]byte, 8+n*37%1400)
	binary.BigEndian.PutUint64(p, uint64(n))
	for i := range p[8:] {
		p[8+i] = byte(n + i)
	}
	return p
}

// send sends from one CPU, so that packets stay in order.
func send(t *testing.T, conn net.Conn, n int) {
	t.Helper()
	err := traffic.RunOnCPU(0, func() error {
		for i := range n {
			if _, err := conn.Write(payload(i)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// received returns the numbers of the packets that the node's socket receives, until none arrive.
func (b *testLab) received(t *testing.T) (numbers []int) {
	t.Helper()
	buffer := make([]byte, 2048)
	for {
		b.socket.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		n, err := b.socket.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return numbers
		}
		if err != nil || n < 8 {
			t.Fatal(n, err)
		}
		numbers = append(numbers, int(binary.BigEndian.Uint64(buffer)))
	}
}

// Packets are delivered unchanged and in order, and the stack receives them, too.
func TestCopies(t *testing.T) {
	load(t)
	b := open(t)
	for _, to := range []netip.Addr{b.lab.Gateway4(), b.lab.Gateway6()} {
		t.Run(to.String(), func(t *testing.T) {
			f, r := b.attach(t, b.rule())
			send(t, b.dial(t, to, port+1), 1) // matches no class
			send(t, b.dial(t, to, port), 500)
			last := uint64(0)
			for i := range 500 {
				rec, frame, ok := r.await()
				if !ok || rec.Seq != uint64(i) || rec.Lost != 0 || rec.Slot != 3 || int(rec.Ifindex) != b.host.OuterIndex() {
					t.Fatalf("record %d: %+v, %v", i, rec, ok)
				}
				if int(rec.Len) != len(frame) || !bytes.Equal(frame[rec.Payload:], payload(i)) {
					t.Fatalf("record %d: %+v holds % x", i, rec, frame)
				}
				if rec.L3 != 14 || rec.Payload != rec.L4+8 || binary.BigEndian.Uint16(frame[rec.L4+2:]) != port {
					t.Fatalf("record %d: offsets %+v", i, rec)
				}
				if rec.Time < last {
					t.Fatalf("record %d: time %d after %d", i, rec.Time, last)
				}
				last = rec.Time
			}
			if got := b.received(t); len(got) != 500 {
				t.Errorf("the socket got %d packets of 500", len(got))
			}
			if s, err := Count(f); err != nil || s.Packets != 500 || s.Delivered != 500 || s.Lost != 0 {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
}

// If a program stops reading, packets pass to the stack after the watchdog's time, and are stolen again when it reads.
func TestWatchdog(t *testing.T) {
	load(t)
	b := open(t)
	rule := b.rule()
	rule.Action, rule.Watchdog = Steal, uint64(200*time.Millisecond)
	f, r := b.attach(t, rule)
	conn := b.dial(t, b.lab.Gateway4(), port)
	send(t, conn, 2)                   // the first one starts the watchdog
	time.Sleep(300 * time.Millisecond) // longer than the watchdog
	send(t, conn, 3)
	if got := b.received(t); len(got) != 3 {
		t.Fatalf("the socket got %v of a program that does not read", got)
	}
	r.await()
	send(t, conn, 1)
	if s, err := Count(f); err != nil || s.Passed != 3 || s.Delivered != 3 || s.Lost != 0 {
		t.Fatalf("%+v, %v", s, err)
	}
	if got := b.received(t); len(got) != 0 {
		t.Fatalf("the socket got %v of a program that reads again", got)
	}
}

// Stolen packets go to the ring only, until it is full. Then they pass to the stack, and the program sees the gap in
// sequence numbers.
func TestStealsUntilFull(t *testing.T) {
	load(t)
	b := open(t)
	rule := b.rule()
	rule.Action, rule.Ring, rule.Caplen = Steal, uint32(os.Getpagesize()), 60
	f, r := b.attach(t, rule)
	conn := b.dial(t, b.lab.Gateway4(), port)
	send(t, conn, 100)
	s, err := Count(f)
	if err != nil || s.Packets != 100 || s.Lost == 0 || s.Delivered+s.Lost != 100 {
		t.Fatalf("%+v, %v", s, err)
	}
	if got := b.received(t); len(got) != int(s.Lost) || got[0] != int(s.Delivered) {
		t.Fatalf("the socket got %v, of %+v", got, s)
	}
	for i := range s.Delivered {
		if rec, frame, ok := r.await(); !ok || rec.Seq != i || len(frame) > 60 || rec.Len < rec.Caplen {
			t.Fatalf("record %d: %+v, %v", i, rec, ok)
		}
	}
	send(t, conn, 1)
	if rec, _, ok := r.await(); !ok || rec.Seq != 100 || rec.Lost != s.Lost {
		t.Fatalf("after the gap: %+v, %v", rec, ok)
	}
}

func TestPattern(t *testing.T) {
	load(t)
	b := open(t)
	rule := b.rule()
	rule.PatternAt, rule.PatternLen = 6, 2 // the low half of the number, without the lowest bit
	rule.Pattern, rule.Mask = [PatternSize]byte{0, 8}, [PatternSize]byte{0xff, 0xfe}
	_, r := b.attach(t, rule)
	conn := b.dial(t, b.lab.Gateway4(), port)
	send(t, conn, 50)
	conn.Write([]byte("short"))
	for _, want := range []int{8, 9} {
		if rec, frame, ok := r.await(); !ok || !bytes.Equal(frame[rec.Payload:], payload(want)) {
			t.Fatalf("packet %d: %+v, %v", want, rec, ok)
		}
	}
	if rec, _, ok := r.Next(); ok {
		t.Fatalf("matched too: %+v", rec)
	}
}

// Malformed frames match no class and cause no error.
func TestMalformed(t *testing.T) {
	load(t)
	b := open(t)
	rule := b.rule()
	rule.Family, rule.Protocol, rule.FirstPort, rule.LastPort = 4, 0, 0, 0 // all packets with an IPv4 header
	_, r := b.attach(t, rule)
	whole := append([]byte{0x45, 0, 0, 36, 0, 1, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2}, 0x1b, 0x58, 0x1b, 0x58,
		0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8)
	change := func(at int, value byte) []byte {
		c := bytes.Clone(whole)
		c[at] = value
		return c
	}
	for what, packet := range map[string][]byte{
		"cut in the IP header": whole[:12], "cut in the UDP header": whole[:24], "header length": change(0, 0x44),
		"version": change(0, 0x65), "total length": change(2, 0x40), "nothing": nil,
	} {
		b.raw(t, packet)
		if rec, frame, ok := r.Next(); ok {
			t.Errorf("%s: matched: %+v % x", what, rec, frame)
		}
	}
	b.raw(t, whole)
	if rec, _, ok := r.await(); !ok || rec.Payload != 42 {
		t.Errorf("whole: %+v, %v", rec, ok)
	}
	b.raw(t, change(7, 1)) // a later fragment, without UDP header
	if rec, _, ok := r.await(); !ok || rec.Payload != rec.L4 {
		t.Errorf("fragment: %+v, %v", rec, ok)
	}
}

// raw sends an IPv4 packet unchanged.
func (b *testLab) raw(t *testing.T, packet []byte) {
	t.Helper()
	err := b.host.Do(func() error {
		link, err := net.InterfaceByName(b.host.Interface())
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		to := &unix.SockaddrLinklayer{Protocol: 8, Ifindex: link.Index, Halen: 6} // ETH_P_IP in network byte order
		copy(to.Addr[:], []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
		return unix.Sendto(fd, packet, 0, to)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRefusesBadRules(t *testing.T) {
	load(t)
	b := open(t)
	for what, tc := range map[string]struct {
		change func(*Rule)
		want   error
	}{
		"odd ring":       {func(r *Rule) { r.Ring = 5000 }, unix.EINVAL},
		"no ring":        {func(r *Rule) { r.Ring = 0 }, unix.EINVAL},
		"huge ring":      {func(r *Rule) { r.Ring = 1 << 31 }, unix.EINVAL},
		"action":         {func(r *Rule) { r.Action = 6 }, unix.EINVAL},
		"family":         {func(r *Rule) { r.Family = 5 }, unix.EINVAL},
		"ports":          {func(r *Rule) { r.FirstPort = port + 1 }, unix.EINVAL},
		"long pattern":   {func(r *Rule) { r.PatternLen = 17 }, unix.EINVAL},
		"no interface":   {func(r *Rule) { r.Ifindex = 1 << 20 }, unix.ENODEV},
		"loopback":       {func(r *Rule) { r.Ifindex = 1 }, unix.EOPNOTSUPP},
		"nothing to map": {func(r *Rule) {}, nil},
	} {
		rule := b.rule()
		tc.change(&rule)
		a := b.try(rule)
		if !errors.Is(a.err, tc.want) {
			t.Errorf("%s: %v, want %v", what, a.err, tc.want)
		}
		if a.err == nil {
			if err := request(a.file, attachRequest, unsafe.Pointer(&rule)); !errors.Is(err, unix.EBUSY) {
				t.Errorf("attached twice: %v", err)
			}
			a.file.Close()
		}
	}
}

// A program can write only to its own page, which cannot affect other programs.
func TestHostileProgram(t *testing.T) {
	load(t)
	b := open(t)
	f, r := b.attach(t, b.rule())
	page := os.Getpagesize()
	if _, err := unix.Mmap(int(f.Fd()), int64(page), page, unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("the data can be mapped for writing")
	}
	if err := unix.Mprotect(r.rest, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		t.Error("the data can be made writable")
	}
	if _, err := unix.Mmap(int(f.Fd()), 0, 4*page+2*ringSize, unix.PROT_READ, unix.MAP_SHARED); err == nil {
		t.Error("more can be mapped than there is")
	}
	_, other := b.attach(t, b.rule())
	conn := b.dial(t, b.lab.Gateway4(), port)
	for _, position := range []uint64{1 << 63, ^uint64(0), 12345, 1} {
		atomic.StoreUint64(word(r.consumer), position)
		send(t, conn, 50)
		for i := range 50 {
			if rec, frame, ok := other.await(); !ok || !bytes.Equal(frame[rec.Payload:], payload(i)) {
				t.Fatalf("position %d: the other program's record %d: %+v, %v", position, i, rec, ok)
			}
		}
	}
}

// A consumer position ahead of the producer, or one that implies more room than the ring has, yields no room: the
// kernel must not write beyond the ring. Without the comparisons in ring_reserve, this panics the machine.
func TestConsumerPositionsAreNotTrusted(t *testing.T) {
	load(t)
	b := openWith(t, netlab.HostOptions{Routed: true, TxChecksumOff: true, MTU: 65535})
	rule := b.rule()
	rule.Ring = uint32(os.Getpagesize())
	f, r := b.attach(t, rule)
	conn := b.dial(t, b.lab.Gateway4(), port)
	large := make([]byte, 60000)
	lost := uint64(0)
	for _, ahead := range []uint64{60000, 60200, 65536, 1 << 20, 1 << 63} {
		atomic.StoreUint64(word(r.consumer), ahead)
		for range 20 {
			if _, err := conn.Write(large); err != nil {
				t.Fatal(err)
			}
			lost++
		}
	}
	b.received(t)
	if s, err := Count(f); err != nil || s.Packets != lost || s.Lost != lost || s.Delivered != 0 {
		t.Fatalf("%+v, %v; want %d packets, all lost", s, err, lost)
	}
	atomic.StoreUint64(word(r.consumer), 0)
	send(t, conn, 1)
	if rec, frame, ok := r.await(); !ok || rec.Lost != lost || !bytes.Equal(frame[rec.Payload:], payload(0)) {
		t.Fatalf("an honest consumer does not receive again: %+v, %v", rec, ok)
	}
}

// Random consumer positions, stored while packets of random sizes arrive on another CPU, affect the program's own
// packets only. TestMain checks the kernel's taint flags.
func TestRandomConsumerPositions(t *testing.T) {
	load(t)
	first := seed.Of(t)
	rng := rand.New(rand.NewPCG(first, 0))
	b := openWith(t, netlab.HostOptions{Routed: true, TxChecksumOff: true, MTU: 65535})
	rule := b.rule()
	rule.Ring = uint32(os.Getpagesize())
	f, r := b.attach(t, rule)
	other := b.rule()
	other.FirstPort, other.LastPort = port+1, port+1
	_, honest := b.attach(t, other)
	conn := b.dial(t, b.lab.Gateway4(), port)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		positions := rand.New(rand.NewPCG(first, 1))
		for {
			select {
			case <-stop:
				return
			default:
				produced := atomic.LoadUint64(word(r.rest))
				atomic.StoreUint64(word(r.consumer), produced+uint64(positions.Int64N(1<<18))-(1<<16))
			}
		}
	}()
	const packets = 3000
	for range packets {
		if _, err := conn.Write(make([]byte, rng.IntN(60000))); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	<-done
	send(t, b.dial(t, b.lab.Gateway4(), port+1), 50)
	for i := range 50 {
		if rec, frame, ok := honest.await(); !ok || !bytes.Equal(frame[rec.Payload:], payload(i)) {
			t.Fatalf("the other program's record %d: %+v, %v", i, rec, ok)
		}
	}
	if s, err := Count(f); err != nil || s.Delivered+s.Lost != s.Packets || s.Packets != packets {
		t.Errorf("%+v, %v", s, err)
	}
}

// Removing a device removes the hook and notifies the program.
func TestDeviceRemoved(t *testing.T) {
	load(t)
	b := open(t)
	f, _ := b.attach(t, b.rule())
	events := func(timeout int) int16 {
		fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
		unix.Poll(fds, timeout)
		return fds[0].Revents
	}
	if got := events(0); got != 0 {
		t.Errorf("events %#x before", got)
	}
	if err := b.host.Remove(); err != nil {
		t.Fatal(err)
	}
	if got := events(1000); got&unix.POLLHUP == 0 {
		t.Errorf("events %#x after", got)
	}
}

// A packet wakes a program that sleeps in poll.
func TestWakes(t *testing.T) {
	load(t)
	b := open(t)
	f, r := b.attach(t, b.rule())
	conn := b.dial(t, b.lab.Gateway4(), port)
	for i := range 100 {
		if !r.wait() {
			t.Fatal("a record before the packet")
		}
		woken := make(chan error)
		go func() {
			fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}}
			n, err := unix.Poll(fds, 5000)
			if n != 1 && err == nil {
				err = errors.New("slept through")
			}
			woken <- err
		}()
		time.Sleep(time.Duration(i%3) * time.Millisecond) // before, while and after it goes to sleep
		conn.Write(payload(i))
		if err := <-woken; err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
		if _, _, ok := r.await(); !ok {
			t.Fatal("woken for nothing")
		}
	}
}

// The module is loaded and unloaded, and programs are killed, under traffic: the socket receives all packets, and the
// kernel reports no error.
func TestUnloadUnderTraffic(t *testing.T) {
	load(t)
	b := open(t)
	conn := b.dial(t, b.lab.Gateway4(), port)
	stop, sent := make(chan bool), make(chan int)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				sent <- i
				return
			default:
				conn.Write(payload(i))
			}
			if i%32 == 0 {
				time.Sleep(time.Millisecond) // the sending interval
			}
		}
	}()
	got := make(chan int)
	var all atomic.Bool // set when all are sent
	go func() {
		n := 0
		for last := false; !last; { // pauses may be long on slow machines
			last = all.Load()
			n += len(b.received(t))
		}
		got <- n
	}()
	for range 10 {
		b.killProgram(t)
	}
	close(stop)
	s := <-sent
	all.Store(true)
	if g := <-got; s != g {
		t.Errorf("%d packets sent, the socket got %d", s, g)
	}
}

// killProgram kills a program that holds a class, and replaces the module.
func (b *testLab) killProgram(t *testing.T) {
	t.Helper()
	a := b.try(b.rule())
	if a.err != nil {
		t.Fatal(a.err)
	}
	program := exec.Command("sleep", "1000")
	program.ExtraFiles = []*os.File{a.file}
	if err := program.Start(); err != nil {
		t.Fatal(err)
	}
	a.file.Close()
	time.Sleep(20 * time.Millisecond) // packets arrive for a program that does not read
	if err := Unload(); !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EBUSY) {
		t.Fatalf("removed under a program: %v", err)
	}
	program.Process.Kill()
	program.Wait()
	if err := Unload(); err != nil {
		t.Fatal("remove:", err)
	}
	if err := Load(object); err != nil {
		t.Fatal(err)
	}
}
