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

// Options of a receiver. The zero value has the defaults.
type Options struct {
	Wait Wait
	// Reach is the longest mean gap between irregular packets for which the receiver spins; it sleeps through longer ones.
	// 0: 1 ms.
	Reach time.Duration
	// Patience, if not 0, is the time for which packets may wait to be received as one batch, which uses the least CPU
	// time.
	Patience time.Duration
	// Awake is for how many of 1000 regular packets the receiver is to be running when they arrive; the others wake it.
	// Lower values use less CPU time and have a longer latency tail. 0: 975; at most 999.
	Awake int

	CPUs         []int // CPU affinity of the thread
	FIFO         int   // SCHED_FIFO priority, 1 to 99; 0: nice -20, if permitted, and short time slices
	KeepPriority bool
	LockMemory   bool
	// IdlePoll, which Spin ignores, makes idle CPUs poll instead of halting (a PM QoS request by /dev/cpu_dma_latency,
	// which needs root), as with the kernel parameter idle=poll, until the receiver has waited for a second without a
	// packet. A wake-up then takes 5 us instead of 40 on a virtual machine. It costs energy and, on a virtual machine, CPU
	// time of the host, but delays no task of this machine. It has little effect where the first idle state is not POLL
	// (arm64, no cpuidle driver).
	IdlePoll bool

	Takeover bool // open the class even if another program has it open
}

// Flags of a packet.
type Flags uint32

const (
	Egress    Flags = 1 << iota // the service sent it; otherwise it is for the service
	Stolen                      // it does not continue to the network stack
	Truncated                   // Frame is shorter than Len
	Segments                    // an aggregate of several packets (GRO, GSO)
	Fragment
	IP4
	IP6
	HasL4 // L4 is a complete TCP, UDP, ICMP or ICMPv6 header
)

// Packet is a received packet. Frame is valid until the next Receive or Release.
type Packet struct {
	Frame           []byte // starts with the Ethernet header
	Len             int    // of the frame
	L3, L4, Payload int    // offsets of IP header, transport header, and the bytes after it
	VLAN            uint16 // TCI of a VLAN tag that the kernel has removed; 0: none
	Flags           Flags
	Ifindex         uint32
	Seq             uint64 // number in the class, from 0; lost packets have one, too
	Sent, Received  int64  // T1, in the data plane, and T2, in this receiver; ns of CLOCK_MONOTONIC
	Lost            uint64 // packets lost for lack of room since the previous one

	cpu, pid uint32
}

// ErrTakenOver is returned when another program has taken over the class.
var ErrTakenOver = errors.New("another program has taken the class over")

// ErrClosed is returned after Close.
var ErrClosed = errors.New("the receiver is closed")

// Receiver is the consumer of one class. It is not safe for concurrent use: only the goroutine that opened it may use
// it.
type Receiver struct {
	path, class string

	conn             int // -1: not connected
	taken, restarted bool
	checkAt          int64
	generation       uint64

	ring       *ring
	page       []byte
	state      *state
	controls   *controls
	senders    [2]sender // IPv4, IPv6
	ownSenders [2]sender // likewise, sockets of the program

	launchClock int32
	launches    Launches

	idle      idleStates
	wait      *waiter
	runningAt int64
	before    schedSample
	schedstat *os.File
	base      int64     // CLOCK_MONOTONIC
	origin    time.Time // at base
	stats     Stats
}

// Open opens a class of a module. module is its name, or the path of its socket; a name means
// /run/kerb/modules/NAME.sock. Open locks the calling goroutine to its thread, and should be called by the goroutine
// that receives.
func Open(module, class string, o Options) (*Receiver, error) {
	if o.Reach == 0 {
		o.Reach = time.Millisecond
	}
	if o.Awake == 0 {
		o.Awake = defaultAwake
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
	r.before = sampleThread(r.schedstat)
	r.runningAt = r.now()
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

// Close closes the class.
func (r *Receiver) Close() error {
	if r.ring != nil {
		r.release()
		r.unmapClass()
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

func (r *Receiver) unmapClass() {
	r.ring.close()
	_ = unix.Munmap(r.page)
	r.controls.close()
}

// setClock measures the offset of the runtime's clock, which needs no system call, from CLOCK_MONOTONIC.
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

// join connects to the module and opens the class, or opens it again and replaces the mapped rings.
func (r *Receiver) join(takeover bool) error {
	conn, err := dial(r.path)
	if err != nil {
		return err
	}
	answer, fds, err := requestClass(conn, r.class, takeover)
	if err == nil {
		if r.restarted && answer.Generation == r.generation {
			closeAll(fds) // the mapped ring is still current
		} else {
			err = r.mapClass(answer, fds)
		}
	}
	if err != nil {
		_ = unix.Close(conn)
		return err
	}
	r.conn, r.restarted = conn, false
	return nil
}

// mapClass maps the ring and the page that the module passed, and unmaps the previous ones.
func (r *Receiver) mapClass(answer moduleMessage, fds []int) error {
	ring, err := mapRing(fds[ringFD], answer.Ring)
	if err != nil {
		closeAll(fds)
		return err
	}
	page, err := unix.Mmap(fds[stateFD], 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		ring.close()
		closeAll(fds[stateFD:])
		return fmt.Errorf("map the state of class %s: %w", r.class, err)
	}
	controls := mapControls(fds[controlsFD])
	closeAll(fds[stateFD:])
	s := (*state)(unsafe.Pointer(unsafe.SliceData(page)))
	atomic.StoreUint32(&s.Waiting, 0)
	s.PID = uint32(unix.Gettid())
	if r.ring != nil {
		s.Log = r.state.Log
		ring.lost = 0
		r.unmapClass()
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
		return 0, r.checkConnection(r.now())
	}
	until := never
	if timeout > 0 {
		until = r.now() + int64(timeout)
	}
	for {
		if ready, err := r.waitForPackets(until); err != nil || !ready {
			return 0, err
		}
		if n := r.fetch(packets); n > 0 {
			return n, nil
		}
	}
}

// Release releases the packets of the last Receive early, so that their room in the ring is free again. Their frames
// must not be accessed any more.
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

// isTakenOver reports whether another program has taken over the class, without consuming the message on the
// connection.
func (r *Receiver) isTakenOver() bool {
	if r.taken || r.conn < 0 {
		return r.taken
	}
	message, fds, _ := receiveMessage(r.conn, unix.MSG_DONTWAIT|unix.MSG_PEEK)
	closeAll(fds)
	return message.Event == "taken"
}

// fetch fetches pending packets and returns their number. All get the same T2, since reading the clock costs as much as
// fetching a packet.
func (r *Receiver) fetch(packets []Packet) int {
	n := r.ring.fetch(packets)
	if n == 0 {
		r.release() // discarded records
		return 0
	}
	now := r.now()
	for i := range packets[:n] {
		packets[i].Received = now
	}
	r.recordPackets(packets[:n])
	return n
}

// waitForPackets waits until packets are pending, and reports whether they are before the time.
func (r *Receiver) waitForPackets(until int64) (bool, error) {
	for !r.ring.pending() {
		now := r.now()
		r.detectPreemption(now)
		if err := r.checkConnection(now); err != nil || now >= until {
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

// sampleSched samples this thread. It reads schedstat, which costs as much as a packet, only if late packets are
// logged.
func (r *Receiver) sampleSched() schedSample {
	if r.state.Deadline == 0 {
		return sampleThread(nil)
	}
	return sampleThread(r.schedstat)
}

// detectPreemption counts a preemption if this thread did not run for 0.5 ms and had an involuntary context switch.
func (r *Receiver) detectPreemption(now int64) {
	away := now - r.runningAt
	r.runningAt = now
	if away < int64(time.Millisecond/2) {
		return
	}
	l := r.sampleSched()
	if l.involuntary != r.before.involuntary {
		r.stats.Preemptions++
		r.wait.preempted(now)
	}
	r.before = l
}

// restUntil leaves the CPU to other threads, and measures how much CPU time they get: the time of going to sleep and
// waking up counts as this thread's.
func (r *Receiver) restUntil(now, until int64) {
	t, ran := unix.NsecToTimespec(until), threadTime()
	_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &t, nil)
	r.stats.Rested++
	r.wait.rested(max(0, r.now()-now-(threadTime()-ran)))
}

// sleep executes a step other than stepSpin.
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
	r.before = r.sampleSched()
	if s.kind == stepRest {
		r.restUntil(now, to)
	} else {
		if r.conn < 0 {
			to = min(to, r.checkAt)
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
	r.runningAt = r.now()
	r.wait.woke(asked, r.runningAt)
	return nil
}

// sleepUntilPacket sleeps until a packet arrives or the time is reached, and reports whether a packet has.
func (r *Receiver) sleepUntilPacket(now, until int64) (bool, error) {
	atomic.StoreUint32(&r.state.Waiting, 1) // full barrier: the data plane writes the record, then reads Waiting
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
		r.checkAt = 0
	}
	return n > 0, nil
}

// checkConnection handles events of the connection: a new configuration, a restarted or removed module, a class that
// was taken over. It does nothing until checkAt.
func (r *Receiver) checkConnection(now int64) error {
	if now < r.checkAt {
		return nil
	}
	if r.taken {
		return ErrTakenOver
	}
	if r.conn < 0 {
		err := r.join(false)
		r.taken = err != nil && strings.Contains(err.Error(), "has a consumer")
		r.checkAt = now + int64(100*time.Millisecond)
		return nil
	}
	r.checkAt = now + int64(10*time.Millisecond)
	message, fds, err := receiveMessage(r.conn, unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return nil
	}
	closeAll(fds)
	r.taken = message.Event == "taken"
	r.restarted = errors.Is(err, io.EOF)
	_ = unix.Close(r.conn)
	r.conn = -1
	r.checkAt = now // after the records that are still in the ring
	return nil
}
