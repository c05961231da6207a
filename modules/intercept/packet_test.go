// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

const threeClasses = `{"classes": [
	{"name": "ctrl", "match": {"protocol": "udp", "ports": [8080], "payload": [{"offset": 4, "bytes": "4354524c"}]}, "action": "steal", "deadline": "100us"},
	{"name": "data", "match": {"protocol": "udp", "ports": [8080], "payload": [{"offset": 4, "bytes": "44415441"}]}, "maxBytes": 64},
	{"name": "log", "match": {"protocol": "udp", "ports": ["8000-8079", 8080]}, "action": "drop"}]}`

// The action of the first matching class applies to packets.
func TestClasses(t *testing.T) {
	onHooks(t, threeClasses, func(t *testing.T, k *kernel) {
		ctrl, data := k.open("ctrl"), k.open("data")
		for _, c := range []struct {
			name string
			frame
			verdict
			ctrl, data int
		}{
			{"ctrl", datagram(8080, "1234CTRL"), dropped, 1, 0},
			{"data", datagram(8080, "1234DATA"), passed, 0, 1},
			{"log", datagram(8080, "1234LOGS"), dropped, 0, 0},
			{"range", datagram(8000, ""), dropped, 0, 0},
			{"none", datagram(8081, "1234CTRL"), passed, 0, 0},
			{"payload too short", datagram(8080, "1234CTR"), dropped, 0, 0},
			{"other protocol", packet("10.0.0.1", "10.0.0.2", tcp, 1, 8080, "1234CTRL"), passed, 0, 0},
			{"IPv6", packet("fd00::1", "fd00::2", udp, 1, 8080, "1234CTRL"), dropped, 1, 0},
		} {
			if v := k.run(c.bytes()); v != c.verdict {
				t.Errorf("%s: %s, want %s", c.name, v, c.verdict)
			}
			if n, m := ctrl.drain(), data.drain(); n != c.ctrl || m != c.data {
				t.Errorf("%s: %d to ctrl, %d to data, want %d and %d", c.name, n, m, c.ctrl, c.data)
			}
		}
		if r := k.report("ctrl"); r.Packets != 2 || r.Delivered != 2 || r.Lost != 0 || r.Gap.Count != 1 {
			t.Errorf("%+v", r)
		}
		if r := k.report("log"); r.Packets != 3 || r.Delivered != 0 {
			t.Errorf("%+v", r)
		}
	})
}

// A record has the unchanged frame, and the offsets of its headers, for any size.
func TestRecords(t *testing.T) {
	for _, hook := range []chain.Hook{chain.XDP, chain.TC} {
		for _, direction := range []chain.Direction{chain.Ingress, chain.Egress} {
			t.Run(string(hook)+" "+string(direction), func(t *testing.T) { testRecords(t, hook, direction) })
		}
	}
}

func testRecords(t *testing.T, hook chain.Hook, direction chain.Direction) {
	k := load(t, hook, direction, everything)
	r := k.open("all")
	largest := 3500 // test runs on TC accept less than a page
	if hook == chain.XDP {
		largest = 9000
	}
	before := now()
	seq := uint64(0)
	for size := 0; size < largest; size += 1 + size/7 {
		f := datagram(8080, string(bytes.Repeat([]byte{byte(size)}, size)))
		f.vlans, f.options = size%3, size%4*4
		raw := f.bytes()
		if v := k.run(raw); v != passed {
			t.Fatalf("%d bytes: %s", len(raw), v)
		}
		rec, frame := r.take()
		if rec == nil || !bytes.Equal(frame, raw) {
			t.Fatalf("%d bytes: %+v %x", len(raw), rec, frame)
		}
		want := *rec
		want.Seq, want.Lost, want.Len, want.CapLen, want.Slot = seq, 0, uint32(len(raw)), uint32(len(raw)), 0
		want.L3, want.L4, want.Payload = uint16(f.linkLen()), uint16(f.linkLen()+f.ipLen()), uint16(f.payloadAt())
		if want.Flags = flagIP4 | flagL4; direction == chain.Egress {
			want.Flags |= flagEgress
		}
		if *rec != want {
			t.Errorf("%d bytes: %+v, want %+v", len(raw), rec, want)
		}
		if rec.Time < before || rec.Time > now() {
			t.Errorf("T1 %d is not between %d and %d", rec.Time, before, now())
		}
		if rec.PID == 0 && sdktest.KernelAtLeast(t, 6, 17) {
			t.Error("not known who was running")
		}
		before = rec.Time
		seq++
	}
}

func now() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return uint64(ts.Nano())
}

const (
	flagEgress    = 1 << 0
	flagStolen    = 1 << 1
	flagTruncated = 1 << 2
	flagFragment  = 1 << 4
	flagIP4       = 1 << 5
	flagIP6       = 1 << 6
	flagL4        = 1 << 7
)

// maxBytes truncates frames, with the flag in the record. The record's size has room for it.
func TestTruncated(t *testing.T) {
	onHooks(t, threeClasses, func(t *testing.T, k *kernel) {
		r := k.open("data")
		f := datagram(8080, "1234DATA"+strings.Repeat("x", 500)).bytes()
		k.run(f)
		rec, frame := r.take()
		if rec == nil || !bytes.Equal(frame, f[:64]) || rec.Len != uint32(len(f)) || rec.Flags != flagIP4|flagL4|
			flagTruncated {
			t.Errorf("%+v %x", rec, frame)
		}
	})
}

// Fragments and packets without transport header have different flags.
func TestFragments(t *testing.T) {
	onHooks(t, everything, func(t *testing.T, k *kernel) {
		r := k.open("all")
		first, later := datagram(8080, "12345678"), datagram(8080, "12345678")
		first.more, later.fragOff = true, 1480
		six := packet("fd00::1", "fd00::2", udp, 1, 2, "x")
		six.ext, six.fragOff = []uint8{0, 44}, 1480
		for _, c := range []struct {
			frame
			flags uint32
		}{
			{first, flagIP4 | flagL4 | flagFragment}, {later, flagIP4 | flagFragment}, {six, flagIP6 | flagFragment},
			{packet("fd00::1", "fd00::2", icmpv6, 0, 0, "x"), flagIP6 | flagL4},
			{packet("10.0.0.1", "10.0.0.2", 47, 0, 0, "x"), flagIP4},
		} {
			k.run(c.bytes())
			if rec, _ := r.take(); rec == nil || rec.Flags != c.flags {
				t.Errorf("%+v, want flags %x", rec, c.flags)
			}
		}
	})
}

// Packets that are not IP pass, although a class matches everything, and so do packets truncated at any length.
func TestNotIP(t *testing.T) {
	onHooks(t, `{"classes": [{"name": "all", "action": "steal"}, {"name": "never"}]}`, func(t *testing.T, k *kernel) {
		r := k.open("all")
		arp := append([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x06}, make([]byte, 46)...)
		if v := k.run(arp); v != passed || r.drain() != 0 {
			t.Errorf("ARP: %s", v)
		}
		for _, f := range []frame{datagram(8080, "1234"), packet("fd00::1", "fd00::2", tcp, 1, 2, "x")} {
			whole := f.bytes()
			first := 15
			if k.hook == chain.TC { // test runs take nothing shorter
				first = f.linkLen() + f.ipLen()
			}
			for n := first; n < len(whole); n++ {
				v := k.run(whole[:n])
				stolen := r.drain()
				if (v == dropped) != (stolen == 1) {
					t.Errorf("%d bytes: %s, %d records", n, v, stolen)
				}
				if n < f.linkLen()+20 && v != passed {
					t.Errorf("%d bytes, no IP header: %s", n, v)
				}
			}
		}
		if n := k.report("never").Packets; n != 0 {
			t.Errorf("%d packets of the class behind the one that matches everything", n)
		}
	})
}

// Without a consumer nothing is stolen; copies are kept for the next consumer.
func TestNoConsumer(t *testing.T) {
	onHooks(t, threeClasses, func(t *testing.T, k *kernel) {
		f := datagram(8080, "1234CTRL").bytes()
		if v := k.run(f); v != passed {
			t.Errorf("stolen without a consumer: %s", v)
		}
		if r := k.report("ctrl"); r.Unread != 1 || r.Delivered != 0 {
			t.Errorf("%+v", r)
		}
		k.run(datagram(8080, "1234DATA").bytes())
		if n := k.open("data").drain(); n != 1 {
			t.Errorf("%d copies", n)
		}
	})
}

// If a consumer stops reading, packets are stolen for the watchdog's time only; as soon as it reads again, they are
// stolen again. Other classes are not affected.
func TestWatchdog(t *testing.T) {
	onHooks(t, strings.Replace(threeClasses, `"deadline": "100us"`, `"watchdog": "20ms"`, 1),
		func(t *testing.T, k *kernel) {
			ctrl, data := k.open("ctrl"), k.open("data")
			f := datagram(8080, "1234CTRL").bytes()
			for round := range 3 {
				if v := k.run(f); v != dropped {
					t.Fatalf("round %d: the first one %s", round, v)
				}
				time.Sleep(40 * time.Millisecond) // twice the watchdog's time
				for range 10 {
					if v := k.run(f); v != passed {
						t.Fatalf("round %d: %s, though the consumer does not read", round, v)
					}
				}
				k.run(datagram(8080, "1234DATA").bytes())
				if n := data.drain(); n != 1 {
					t.Errorf("round %d: %d records of the other class", round, n)
				}
				if n := ctrl.drain(); n != 1 {
					t.Errorf("round %d: %d records", round, n)
				}
			}
			if r := k.report("ctrl"); r.Unread != 30 || r.Delivered != 3 || r.Lost != 0 {
				t.Errorf("%+v", r)
			}
		})
}

// A full ring loses records, counts them, and steals no packets from the stack; other classes have separate rings.
func TestFull(t *testing.T) {
	for _, action := range []string{"copy", "steal"} {
		config := fmt.Sprintf(
			`{"classes": [{"name": "a", "match": {"protocol": "udp", "ports": [1]}, "ring": "64Ki", "action": %q, "watchdog": "10s"}, {"name": "b"}]}`, action)
		onHooks(t, config, func(t *testing.T, k *kernel) {
			a, b := k.open("a"), k.open("b")
			f := datagram(1, strings.Repeat("x", 100)).bytes()
			const each, sent = 64 + 256, 300 // bytes of a record, packets
			fit := (64<<10 - 1) / each       // the kernel keeps one byte free
			for i := range sent {
				v := k.run(f)
				if want := verdict(map[bool]verdict{true: dropped, false: passed}[action == "steal" && i < fit]); v != want {
					t.Fatalf("packet %d: %s, want %s", i, v, want)
				}
			}
			k.run(datagram(2, "").bytes())
			if n := b.drain(); n != 1 {
				t.Errorf("%d records of the other class", n)
			}
			if n := a.drain(); n != fit {
				t.Errorf("%d records, want %d", n, fit)
			}
			k.run(f)
			if rec, _ := a.take(); rec == nil || rec.Seq != sent || rec.Lost != uint64(sent-fit) {
				t.Errorf("after the loss: %+v, want seq %d and %d lost", rec, sent, sent-fit)
			}
			if r := k.report("a"); r.Lost != uint64(sent-fit) || r.Delivered != uint64(fit)+1 {
				t.Errorf("%+v", r)
			}
		})
	}
}

// While the rings of LOG and DATA are full, every CTRL packet is delivered, in order.
func TestFullRingsOfOthers(t *testing.T) {
	const config = `{"classes": [
		{"name": "ctrl", "match": {"protocol": "udp", "ports": [8080], "payload": [{"offset": 0, "bytes": "03"}]},
			"action": "steal", "ring": "64Ki", "watchdog": "60s"},
		{"name": "data", "match": {"protocol": "udp", "ports": [8080], "payload": [{"offset": 0, "bytes": "02"}]},
			"action": "steal", "ring": "64Ki", "watchdog": "60s"},
		{"name": "log", "match": {"protocol": "udp", "ports": [8080], "payload": [{"offset": 0, "bytes": "01"}]},
			"ring": "64Ki"}]}`
	onHooks(t, config, func(t *testing.T, k *kernel) {
		const fill, packets = 400, 1000 // all CTRL packets together exceed the ring's size five times
		ctrl := k.open("ctrl")
		k.open("data")
		k.open("log")
		others := [][]byte{datagram(8080, "\x02"+strings.Repeat("d", 200)).bytes(),
			datagram(8080, "\x01"+strings.Repeat("l", 200)).bytes()}
		for range fill {
			k.run(others[0])
			k.run(others[1])
		}
		before := map[string]ClassReport{"data": k.report("data"), "log": k.report("log")}
		for i := range packets {
			want := datagram(8080, fmt.Sprintf("\x03%0200d", i)).bytes()
			if v := k.run(want); v != dropped {
				t.Fatalf("CTRL packet %d: %s, want %s: it is stolen", i, v, dropped)
			}
			k.run(others[0])
			k.run(others[1])
			rec, frame := ctrl.take()
			if rec == nil || rec.Seq != uint64(i) || rec.Lost != 0 || !bytes.Equal(frame, want) {
				t.Fatalf("CTRL packet %d: %+v, % x", i, rec, frame)
			}
		}
		for name, was := range before {
			is := k.report(name)
			if was.Lost == 0 || is.Lost != was.Lost+packets || is.Delivered != was.Delivered {
				t.Errorf("the ring of %s was not full all the time: %+v, then %+v", name, was, is)
			}
		}
	})
}

// A sleeping consumer is woken once, a spinning one never.
func TestWakes(t *testing.T) {
	onHooks(t, everything, func(t *testing.T, k *kernel) {
		r := k.open("all")
		if k.wakes(r, false) {
			t.Error("woken though it does not wait")
		}
		r.drain()
		if !k.wakes(r, true) {
			t.Error("not woken")
		}
		if r.state.Waiting != 0 {
			t.Error("still waiting")
		}
	})
}

// wakes reports whether a packet ends a sleep that started before it.
func (k *kernel) wakes(r *reader, waiting bool) bool {
	k.t.Helper()
	patience := 300 * time.Millisecond
	if waiting {
		r.state.Waiting = 1
		patience = 30 * time.Second
	}
	return r.sleeps(patience, func() { k.run(datagram(1, "").bytes()) })
}

// sleeps waits until the ring wakes it, which do triggers, and reports whether that happens in time.
func (r *reader) sleeps(patience time.Duration, do func()) (woken bool) {
	r.t.Helper()
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		r.t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, r.ring.FD(),
		&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}); err != nil {
		r.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		time.Sleep(50 * time.Millisecond) // by then it sleeps; an earlier wake-up is not lost
		do()
	}()
	n, err := 0, error(unix.EINTR) // signals of the Go runtime
	for errors.Is(err, unix.EINTR) {
		n, err = unix.EpollWait(fd, make([]unix.EpollEvent, 1), int(patience.Milliseconds()))
	}
	<-done
	return n == 1
}

// Marking sets the priority of a packet on TC, which XDP does not support.
func TestMark(t *testing.T) {
	const config = `{"classes": [{"name": "m", "direction": "both", "action": "mark", "priority": 6}]}`
	const priorityAt = 32 // of struct __sk_buff
	k := load(t, chain.TC, chain.Egress, config)
	out := make([]byte, 192)
	opts := ebpf.RunOptions{Data: datagram(1, "").bytes(), DataOut: make([]byte, 300), Context: make([]byte, 192),
		ContextOut: out}
	if _, err := k.prog.Run(&opts); err != nil {
		t.Fatal(err)
	}
	if p := binary.NativeEndian.Uint32(out[priorityAt:]); p != 6 {
		t.Errorf("priority %d", p)
	}
	k = load(t, chain.XDP, chain.Ingress, config)
	if v := k.run(datagram(1, "").bytes()); v != passed || k.report("m").Unmarked != 1 {
		t.Errorf("XDP: %s %+v", v, k.report("m"))
	}
}

// A consumer's writes to its page and its ring's position do not affect packets of other classes and of the stack.
func TestHostilePage(t *testing.T) {
	onHooks(t, threeClasses, func(t *testing.T, k *kernel) {
		ctrl, data := k.open("ctrl"), k.open("data")
		slot := k.class("ctrl").slot
		page := k.pages[slot]
		for i := range 200 {
			for at := range page {
				page[at] = byte(i*7 + at*i)
			}
			*word(ctrl.consumer) = uint64(i) * 0x123456789abcdef
			k.run(datagram(8080, "1234CTRL").bytes())
			k.run(datagram(8080, "1234DATA").bytes())
			if n := data.drain(); n != 1 {
				t.Fatalf("round %d: %d records of the other class", i, n)
			}
		}
		if _, err := k.late(k.maps); err != nil {
			t.Error(err)
		}
		k.report("ctrl")
	})
}

// The mappings of a program contain only its own class.
func TestOwnPageOnly(t *testing.T) {
	k := load(t, chain.TC, chain.Ingress, threeClasses)
	page := os.Getpagesize()
	for _, name := range []string{"ctrl", "data"} {
		c := k.class(name)
		own := k.maps[stateName(c.slot)]
		if more, err := unix.Mmap(own.FD(), 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			_ = unix.Munmap(more)
			t.Errorf("%s: there is more than a page to map", name)
		}
		k.pages.state(c.slot).Deadline = uint64(100 + c.slot)
		got := make([]byte, pageBytes)
		if err := own.Lookup(uint32(0), &got); err != nil || pageOf(got).Deadline != uint64(100+c.slot) {
			t.Errorf("%s: the map has not the page of its class: %v", name, err)
		}
	}
}

// Counters continue when the configuration changes, and are removed with their class.
func TestCountersContinue(t *testing.T) {
	k := load(t, chain.TC, chain.Ingress, threeClasses)
	k.run(datagram(8080, "1234LOGS").bytes())
	next := compileConfig(t, `{"classes": [{"name": "new"}, {"name": "log"}]}`)
	if err := next.Fill(k.maps); err != nil { // the next configuration has the same state maps
		t.Fatal(err)
	}
	if n, err := readCounts(k.maps, next.Classes[1]); err != nil || n.Packets != 1 {
		t.Errorf("%d packets, %v", n.Packets, err)
	}
	if err := next.forget(k.maps, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := readCounts(k.maps, k.Classes[0]); err == nil {
		t.Error("counters of a removed class")
	}
	next.consumers.run(next.Classes)
	for i := range 5 { // failed attempts
		trial := compileConfig(t, classes(maxClasses, fmt.Sprintf(`{"name": "t%d-%%d", "action": "pass"}`, i)))
		trial.consumers = next.consumers
		if err := trial.Fill(k.maps); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := readCounts(k.maps, next.Classes[1]); err != nil || n.Packets != 1 {
		t.Errorf("after trials: %d packets, %v", n.Packets, err)
	}
}

const echoClasses = `{"classes": [{"name": "echo", "match": {"protocol": "udp", "ports": [7000], "payload": [{"bytes": "3f"}]}, "action": "answer",
	"answer": {"app": "echo", "totalRate": 1000}}, {"name": "rest"}]}`

// An application of the responder answers a class, with all of its checks.
func TestAnswers(t *testing.T) {
	onHooks(t, echoClasses, func(t *testing.T, k *kernel) {
		rest := k.open("rest")
		request := packet("10.0.0.1", "10.0.0.2", udp, 40000, 7000, "?hello").bytes()
		binary.BigEndian.PutUint16(request[24:], 0x66c9) // header checksum
		v, reply := k.runOut(request)
		if v != answered || !bytes.Equal(reply[26:30], request[30:34]) || string(reply[42:48]) != "?hello" ||
			binary.BigEndian.Uint16(reply[36:]) != 40000 {
			t.Errorf("%s %x", v, reply)
		}
		if v := k.run(datagram(7000, "!hello").bytes()); v != passed || rest.drain() != 1 {
			t.Errorf("a request of another class: %s", v)
		}
		bad := bytes.Clone(request)
		bad[24]++
		if v := k.run(bad); v != passed {
			t.Errorf("a wrong header checksum: %s", v)
		}
		if r := k.report("echo"); r.Packets != 2 || r.Answered != 1 {
			t.Errorf("%+v", r)
		}
	})
}
