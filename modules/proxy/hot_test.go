// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// cold exceeds the lifetime of copies of sessions: 256 jiffies, at the resolution of coarse clocks.
func cold(t testing.TB) time.Duration {
	t.Helper()
	var jiffy unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_MONOTONIC_COARSE, &jiffy); err != nil {
		t.Fatal(err)
	}
	return 260 * time.Duration(jiffy.Nano())
}

// onCPU runs test on one CPU, on which PROG_TEST_RUN then runs programs.
func onCPU(t testing.TB, cpu int, test func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Skipf("CPU %d: %v", cpu, err)
	}
	defer unix.SchedSetaffinity(0, &before)
	test()
}

// entry returns one of the two entries of the only session.
func (w *world) entry(reverse bool) flow {
	w.t.Helper()
	for k, s := range w.table() {
		if (s.Flags&sessionReverse != 0) == reverse {
			return k
		}
	}
	w.t.Fatal("no such entry")
	return flow{}
}

// connect opens a connection to the far instance, and returns a packet of the client, and its expected translation.
func (w *world) connect() (sent, changed packet) {
	w.t.Helper()
	w.out(tcp(w.client, 40000, w.farVIP, 80, tcpSYN).bytes())
	w.in(tcp(w.far, 80, w.client, 40000, tcpSYN|tcpACK).bytes())
	sent = tcp(w.client, 40000, w.farVIP, 80, tcpACK)
	changed = sent
	changed.dst = addr(w.far)
	w.want(w.out(sent.bytes()), tcNext, changed.bytes())
	return sent, changed
}

// A session that was just used is found in this CPU's copies for a short time.
func TestCopiesOfSessions(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		// two slots: sessions are not re-created within a connection
		w.addVIP(w.farVIP, policyTurns, 0, w.farI, w.farI)
		sent, changed := w.connect()
		key := w.entry(false)
		s := w.table()[key]
		served := false
		onCPU(t, 0, func() {
			// The copy may expire between the two packets, as often on emulated machines.
			for end := time.Now().Add(10 * time.Second); !served && time.Now().Before(end); {
				w.put(mapSessions, key, s)
				for range 2 { // the first one may have to mark the session as seen, and keeps no copy then
					w.want(w.out(sent.bytes()), tcNext, changed.bytes())
					s = w.table()[key]
				}
				if err := w.maps[mapSessions].Delete(key); err != nil {
					t.Fatal(err)
				}
				served = w.out(sent.bytes()).action == tcNext
			}
			if !served {
				t.Error("the copy is not used")
			}
			time.Sleep(cold(t)) // the test measures how long a copy is used
			if got := w.out(sent.bytes()); got.action == tcNext {
				t.Error("the copy is used for too long")
			}
		})
	})
}

// After a session ends or starts, no CPU uses an outdated copy.
func TestCopiesAreDroppedOnAllCPUs(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("needs two CPUs")
	}
	families(t, func(t *testing.T, w *world) {
		sent, changed := w.connect()
		otherAddr := addr(w.far).Next()
		other := w.addInstance(0, otherAddr.String())
		for range 5 {
			onCPU(t, 1, func() { w.want(w.out(sent.bytes()), tcNext, changed.bytes()) })
			onCPU(t, 0, func() {
				s := w.table()[w.entry(false)]
				run, to := w.farI, addr(w.far)
				if s.Instance == w.farI {
					run, to = other, otherAddr
				}
				w.out(tcp(w.client, 40000, w.farVIP, 80, tcpRST).bytes())
				w.addVIP(w.farVIP, policyTurns, 0, run)
				syn := w.out(tcp(w.client, 40000, w.farVIP, 80, tcpSYN).bytes())
				changed.dst = to
				want := changed
				want.flags = tcpSYN
				w.want(syn, tcNext, want.bytes())
			})
			onCPU(t, 1, func() { w.want(w.out(sent.bytes()), tcNext, changed.bytes()) })
		}
	})
}

// The LRU may evict one entry of a session only. It is restored before it is needed.
func TestOneEntryIsMissing(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		sent, changed := w.connect()
		for _, reverse := range []bool{true, false} {
			if err := w.maps[mapSessions].Delete(w.entry(reverse)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(cold(t)) // copies have expired
			answer := tcp(w.far, 80, w.client, 40000, tcpACK)
			back := answer
			back.src = addr(w.farVIP)
			if reverse {
				w.want(w.out(sent.bytes()), tcNext, changed.bytes())
			}
			w.want(w.in(answer.bytes()), tcNext, back.bytes())
			w.want(w.out(sent.bytes()), tcNext, changed.bytes())
			if n := len(w.table()); n != 2 {
				t.Errorf("reverse %v: %d entries, want 2", reverse, n)
			}
		}
	})
}

// A copy translates a packet as the session does: TCP and UDP, with and without checksum, to another port and back,
// through the interface of an instance and on the normal path. Removing the session shows that the copy was used.
func TestCopiesChangePackets(t *testing.T) {
	families(t, func(t *testing.T, w *world) {
		for i, near := range []bool{true, false} {
			vip, instance, target, action := addr(w.farVIP).Next().String(), w.farI, w.far, int32(tcNext)
			if near {
				vip, instance, target, action = addr(w.farVIP).Next().Next().String(), w.nearI, w.near, tcRedirect
			}
			id := w.addVIP(vip, policyTurns, vipPorts, instance)
			w.addPort(id, protoTCP, 80, 8080)
			w.addPort(id, protoUDP, 80, 8080)
			tcp, udp := tcp(w.client, uint16(50000+i), vip, 80, tcpACK), udp(w.client, uint16(51000+i), vip, 80)
			none := udp
			none.noCheck = true
			w.out(syn(tcp).bytes())
			for _, p := range []packet{tcp, udp, none} {
				p.payload = []byte("an odd number of bytes!")
				want := p
				want.dst, want.dport = addr(target), 8080
				if near {
					want = want.to(w.nearMAC)
				}
				w.byCopy(w.out, p.bytes(), action, want.bytes())
				if near {
					continue // its answers pass another interface
				}
				answer, back := want.turned(), p.turned()
				w.byCopy(w.in, answer.bytes(), tcNext, back.bytes())
			}
		}
	})
}

func syn(p packet) packet { p.flags = tcpSYN; return p }

// byCopy sends a frame until a copy must have served it.
func (w *world) byCopy(send func([]byte) result, frame []byte, action int32, want []byte) {
	w.t.Helper()
	onCPU(w.t, 0, func() {
		for range 20 { // the moment may end between two packets
			w.want(send(frame), action, want)
			w.want(send(frame), action, want)
			entries, opened := w.table(), w.count(countOpened)
			for k := range entries {
				w.forget(k)
			}
			got := send(frame)
			for k, s := range entries {
				w.put(mapSessions, k, s)
			}
			if got.action == action && bytes.Equal(got.frame, want) && w.count(countOpened) == opened {
				return
			}
		}
		w.t.Error("the copy is not used")
	})
}

// CPUs have 512 to 16,384 copies each, in total at most 8 MiB, or the minimum per CPU.
func TestNumberOfCopies(t *testing.T) {
	for cpus, want := range map[int]uint32{1: 13, 2: 13, 4: 13, 5: 12, 8: 12, 64: 9, 128: 8, 4096: 8} {
		if got := hotBits(cpus); got != want {
			t.Errorf("%d CPUs: 2^%d sets each, want 2^%d", cpus, got, want)
		}
	}
}

// Two sessions with the same hash can have copies at the same time.
func TestTwoCopiesOfAPlace(t *testing.T) {
	w := newWorld(t, true)
	w.twoSlots()
	place := func(port uint16) uint32 { return hotHash(addr(w.client), addr(w.farVIP), port, 80, testIfindex) >> 24 }
	second := uint16(40001)
	for place(second) != place(40000) {
		second++
	}
	served := false
	onCPU(t, 0, func() {
		for try := 0; try < 20 && !served; try++ { // the moment may end between the packets
			served = true
			for _, port := range []uint16{40000, second} {
				w.open(port)
				for range 2 {
					served = w.talk(port) && served
				}
			}
			for key := range w.table() {
				w.forget(key)
			}
			served = w.talk(40000) && w.talk(second) && served
		}
	})
	if !served {
		t.Error("one of the sessions has no copy")
	}
}
