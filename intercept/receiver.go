// SPDX-License-Identifier: Apache-2.0

// Package intercept receives packets that Kerb's module intercept copies or steals, within microseconds of their
// arrival. It is lib/intercept in Go.
//
//	r, err := intercept.Open("intercept", "ctrl", intercept.Options{})
//	...
//	packets := make([]intercept.Packet, 16)
//	for {
//		n, err := r.Receive(packets, -1)
//		for _, p := range packets[:n] {
//			handle(p.Frame[p.Payload:])
//		}
//	}
package intercept

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Options of a receiver. The zero value is a good choice.
type Options struct {
	Wait Wait
	// Reach: packets that come less often than this on average, and not regularly, are slept for. 0 is 1 ms.
	Reach time.Duration
	// Patience: packets may wait so long to be taken together, which takes the least CPU of all.
	Patience time.Duration
	// Awake: of 1000 packets that come regularly, how many are to find the receiver running; the others wake it. Fewer
	// take less CPU and have the longer tail. 0 is 975; at most 999.
	Awake int

	CPUs         []int // that the thread may run on
	FIFO         int   // SCHED_FIFO priority, 1 to 99; 0: nice -20 if the process may, and short slices
	KeepPriority bool
	LockMemory   bool
	// IdlePoll, not of Spin: all CPUs that have nothing to do poll instead of halting (PM QoS: /dev/cpu_dma_latency, which
	// is root's), as by the kernel's parameter idle=poll, until this receiver has waited for a second without a packet: a
	// wake-up takes 5 us instead of 40 on a virtual machine. It takes energy and, of a virtual machine, time of the host's
	// CPUs, but no task's here. Where the first idle state is not POLL (arm64, no cpuidle driver) it changes little.
	IdlePoll bool

	Takeover bool // take the class from the program that has it
}

// Flags of a packet.
type Flags uint32

const (
	Egress    Flags = 1 << iota // the service has sent it; else it is for the service
	Stolen                      // no other receiver gets it
	Truncated                   // there is less of it here than Len
	Segments                    // it stands for several packets (GRO, GSO)
	Fragment
	IP4
	IP6
	HasL4 // L4 is a complete TCP, UDP, ICMP or ICMPv6 header
)

// Packet is valid until the next Receive or Release.
type Packet struct {
	Frame           []byte // from the Ethernet header on
	Len             int    // of the frame
	L3, L4, Payload int    // offsets; Payload is behind the transport header
	VLAN            uint16 // TCI of a tag that the kernel has taken out of the frame
	Flags           Flags
	Ifindex         uint32
	Seq             uint64 // in the class, from 0 on; lost packets have one, too
	Sent, Received  int64  // T1: when the kernel saw it, T2: when the receiver did; ns of CLOCK_MONOTONIC
	Lost            uint64 // packets that found no room since the packet before

	cpu, pid uint32
}

// ErrTakenOver is returned when another program has taken over the class.
var ErrTakenOver = errors.New("another program has taken the class over")

// ErrClosed is returned after Close.
var ErrClosed = errors.New("the receiver is closed")

// Receiver is the consumer of one class. One goroutine at a time uses it, that which opened it.
type Receiver struct {
	path, class string

	conn             int // -1: none at the moment
	taken, restarted bool
	attendAt         int64
	generation       uint64

	ring     *ring
	page     []byte
	state    *state
	controls *controls
	senders  [2]sender // of IPv4, of IPv6
	given    [2]sender // likewise, the program's

	launchClock int32
	launches    Launches

	idle      idleStates
	wait      *waiter
	seen      int64
	before    look
	schedstat *os.File
	base      int64     // CLOCK_MONOTONIC
	origin    time.Time // at base
	stats     Stats
}

// Open opens a class of a module: its name, or the path of its socket, by default /run/kerb/modules/NAME.sock. The
// goroutine is locked to its thread from now on, and should be the one that receives.
func Open(module, class string, o Options) (*Receiver, error) {
	if o.Reach == 0 {
		o.Reach = time.Millisecond
	}
	if o.Awake == 0 {
		o.Awake = mostlyAwake
	}
	if o.Awake < 0 || o.Awake > 999 {
		return nil, fmt.Errorf("awake %d: at most 999 of 1000", o.Awake)
	}
	runtime.LockOSThread()
	if err := prepareThread(&o); err != nil {
		return nil, err
	}
	if !strings.Contains(module, "/") {
		module = filepath.Join("/run/kerb/modules", module+".sock")
	}
	r := &Receiver{path: module, class: class, conn: -1, idle: idleStates{fd: -1}, wait: newWaiter(
		goals{mode: o.Wait, reach: int64(o.Reach), patience: int64(o.Patience), awake: int64(o.Awake)}, threadStanding())}
	r.schedstat, _ = os.Open("/proc/thread-self/schedstat")
	r.setClock()
	r.before = readSchedstat(r.schedstat)
	r.seen = r.now()
	var err error
	if o.IdlePoll && o.Wait != Spin {
		r.idle, err = openIdleStates()
	}
	if err == nil {
		err = r.join(o.Takeover)
	}
	if err != nil {
		_ = r.Close()
		return nil, err
	}
	return r, nil
}

// Close gives the class back.
func (r *Receiver) Close() error {
	if r.ring != nil {
		r.release()
		r.leave()
	}
	r.ring = nil
	if r.conn >= 0 {
		_ = unix.Close(r.conn)
		r.conn = -1
	}
	r.idle.close()
	for i := range r.senders {
		r.senders[i].close()
	}
	if r.schedstat != nil {
		_ = r.schedstat.Close()
		r.schedstat = nil
	}
	return nil
}

func (r *Receiver) leave() {
	r.ring.close()
	_ = unix.Munmap(r.page)
	r.controls.close()
}

// setClock finds out how the runtime's clock, which needs no system call, goes with CLOCK_MONOTONIC.
func (r *Receiver) setClock() {
	best := time.Hour
	for range 16 {
		var t unix.Timespec
		before := time.Now()
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
		if took := time.Since(before); took < best {
			best, r.base, r.origin = took, t.Nano(), before.Add(took/2)
		}
	}
}

func (r *Receiver) now() int64 { return r.base + int64(time.Since(r.origin)) }

// join connects and opens the class; a receiver that has it already continues with what is there now.
func (r *Receiver) join(takeover bool) error {
	conn, err := dial(r.path)
	if err != nil {
		return err
	}
	answer, fds, err := ask(conn, r.class, takeover)
	if err == nil {
		if r.restarted && answer.Generation == r.generation {
			closeAll(fds) // what we have still is what there is
		} else {
			err = r.enter(answer, fds)
		}
	}
	if err != nil {
		_ = unix.Close(conn)
		return err
	}
	r.conn, r.restarted = conn, false
	return nil
}

// enter maps what the module has handed over and leaves what was before.
func (r *Receiver) enter(answer opened, fds []int) error {
	ring, err := mapRing(fds[ofRing], answer.Ring)
	if err != nil {
		closeAll(fds)
		return err
	}
	page, err := unix.Mmap(fds[ofState], 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		ring.close()
		closeAll(fds[ofState:])
		return fmt.Errorf("map the state of class %s: %w", r.class, err)
	}
	controls := mapControls(fds[ofControls])
	closeAll(fds[ofState:])
	s := (*state)(unsafe.Pointer(unsafe.SliceData(page)))
	atomic.StoreUint32(&s.Waiting, 0)
	s.PID = uint32(unix.Gettid())
	if r.ring != nil {
		s.Log = r.state.Log
		ring.lost = 0
		r.leave()
	}
	r.ring, r.page, r.state, r.controls, r.generation = ring, page, s, controls, s.Generation
	return nil
}

// Receive releases the packets of the previous call and waits for new ones, at most for the timeout; 0 polls, a
// negative one waits indefinitely. It returns their number. Packets that are held for longer than the watchdog of the
// class count as unread: packets that would be stolen continue to the network stack until the held ones are released.
// The receiver follows new configurations of the module and restarts of the agent by itself: the call that does so
// also waits for the module's answer, at most 10 s.
func (r *Receiver) Receive(packets []Packet, timeout time.Duration) (int, error) {
	if r.ring == nil {
		return 0, ErrClosed
	}
	r.release()
	n := r.fetch(packets)
	if n > 0 || len(packets) == 0 {
		return n, nil
	}
	if timeout == 0 {
		if r.ring.pending() { // a record that is being written comes before the next ring
			return 0, nil
		}
		return 0, r.maintainConnection(r.now())
	}
	until := never
	if timeout > 0 {
		until = r.now() + int64(timeout)
	}
	for {
		if ready, err := r.await(until); err != nil || !ready {
			return 0, err
		}
		if n := r.fetch(packets); n > 0 {
			return n, nil
		}
	}
}

// Release gives packets back early, so that their room is free while the last ones are being worked on.
func (r *Receiver) Release() {
	if r.ring != nil {
		r.release()
	}
}

func (r *Receiver) release() {
	if !r.ring.moved() || !r.isTakenOver() {
		r.ring.release()
	}
}

// isTakenOver reports whether another program has taken over the ring, without reading the message about it from the
// connection.
func (r *Receiver) isTakenOver() bool {
	if r.taken || r.conn < 0 {
		return r.taken
	}
	message, fds, _ := receiveMessage(r.conn, unix.MSG_DONTWAIT|unix.MSG_PEEK)
	closeAll(fds)
	return message.Event == "taken"
}

// fetch returns how many packets are there, at most one for each element of packets. All get the same time of receipt:
// the clock costs as much as fetching one.
func (r *Receiver) fetch(packets []Packet) int {
	n := r.ring.fetch(packets)
	if n == 0 {
		r.release() // records that are none
		return 0
	}
	now := r.now()
	for i := range packets[:n] {
		packets[i].Received = now
	}
	r.log(packets[:n])
	return n
}

// await reports whether there is something in the ring before it is time.
func (r *Receiver) await(until int64) (bool, error) {
	for !r.ring.pending() {
		now := r.now()
		r.notice(now)
		if err := r.maintainConnection(now); err != nil || now >= until {
			return false, err
		}
		if now > int64(r.state.Heartbeat)+int64(time.Millisecond) {
			r.state.Heartbeat = uint64(now)
		}
		s := r.wait.next(now)
		if s.kind == stepSpin {
			r.stats.Spun++
			continue
		}
		if err := r.sleep(s, now, until); err != nil {
			return false, err
		}
	}
	return true, nil
}

// examine this thread; how long it waited only where late packets are reported: that is as expensive as a packet.
func (r *Receiver) look() look {
	if r.state.Deadline == 0 {
		return readSchedstat(nil)
	}
	return readSchedstat(r.schedstat)
}

// notice finds out whether others had the CPU: we were away for long, and not by ourselves.
func (r *Receiver) notice(now int64) {
	away := now - r.seen
	r.seen = now
	if away < int64(time.Millisecond/2) {
		return
	}
	l := r.look()
	if l.involuntary != r.before.involuntary {
		r.stats.Preemptions++
		r.wait.preempted(now)
	}
	r.before = l
}

// rest leaves the CPU to others, and measures what they have of it: going to sleep and waking up is of this thread's
// time.
func (r *Receiver) rest(now, until int64) {
	t, ran := unix.NsecToTimespec(until), threadTime()
	_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &t, nil)
	r.stats.Rested++
	r.wait.rested(max(0, r.now()-now-(threadTime()-ran)))
}

// sleep carries out a step other than spinning.
func (r *Receiver) sleep(s step, now, until int64) error {
	to := until
	if s.kind != stepSleep {
		to = min(s.until, until)
	}
	r.idle.set(now < r.wait.last+quietTime)
	if r.idle.polls {
		to = min(to, r.wait.last+quietTime)
	}
	asked := to
	if s.kind == stepSleep || to != s.until {
		asked = 0
	}
	r.before = r.look()
	if s.kind == stepRest {
		r.rest(now, to)
	} else {
		if r.conn < 0 {
			to = min(to, r.attendAt)
		}
		woken, err := r.sleepUntilPacket(now, to)
		if err != nil {
			return err
		}
		if woken || r.conn < 0 {
			asked = 0
		}
		r.stats.Slept++
	}
	r.seen = r.now()
	r.wait.woke(asked, r.seen)
	return nil
}

// sleepUntilPacket sleeps until a packet arrives or the time is reached, and reports whether a packet has.
func (r *Receiver) sleepUntilPacket(now, until int64) (bool, error) {
	atomic.StoreUint32(&r.state.Waiting, 1) // a full barrier: the kernel delivers, then looks; we say, then look
	defer atomic.StoreUint32(&r.state.Waiting, 0)
	if r.ring.pending() {
		return true, nil
	}
	fds := []unix.PollFd{{Fd: int32(r.ring.fd), Events: unix.POLLIN}, {Fd: int32(r.conn), Events: unix.POLLIN}}
	var timeout *unix.Timespec
	if until != never {
		t := unix.NsecToTimespec(max(until-now, 0))
		timeout = &t
	}
	n, err := unix.Ppoll(fds, timeout, nil)
	if errors.Is(err, unix.EINTR) { // the runtime's own signals
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("poll: %w", err)
	}
	if fds[1].Revents != 0 {
		r.attendAt = 0
	}
	return n > 0, nil
}

// maintainConnection handles changes of the connection: a new configuration, a restarted or removed module, a class
// taken over. It does nothing until attendAt.
func (r *Receiver) maintainConnection(now int64) error {
	if now < r.attendAt {
		return nil
	}
	if r.taken {
		return ErrTakenOver
	}
	if r.conn < 0 {
		err := r.join(false)
		r.taken = err != nil && strings.Contains(err.Error(), "has a consumer")
		r.attendAt = now + int64(100*time.Millisecond)
		return nil
	}
	r.attendAt = now + int64(10*time.Millisecond)
	message, fds, err := receiveMessage(r.conn, unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return nil
	}
	closeAll(fds)
	r.taken = message.Event == "taken"
	r.restarted = errors.Is(err, io.EOF)
	_ = unix.Close(r.conn)
	r.conn = -1
	r.attendAt = now // first what is in the ring still
	return nil
}
