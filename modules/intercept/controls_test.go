// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
)

// Operations of control messages, enum icpt_op.
const (
	opStart = iota + 1
	opStop
	opAction
	opPriority
	opMaxBytes
	opDeadline
	opPorts
	opPayload
)

// commander is a minimal sender of control messages.
type commander struct {
	t        testing.TB
	slot     int
	doorbell *uint32
	consumer []byte
	producer []byte // page 1 and the data, twice
	size     uint64
}

func (k *kernel) commander(name string) *commander {
	k.t.Helper()
	slot := k.class(name).slot
	k.setConsumer(slot, 1)
	ring := k.maps[controlName(slot)]
	page, size := os.Getpagesize(), int(ring.MaxEntries())
	consumer, err1 := unix.Mmap(ring.FD(), 0, page, unix.PROT_READ, unix.MAP_SHARED)
	producer, err2 := unix.Mmap(ring.FD(), int64(page), page+2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err := errors.Join(err1, err2); err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _, _ = unix.Munmap(consumer), unix.Munmap(producer) })
	return &commander{k.t, slot, &k.pages.state(slot).Doorbell, consumer, producer, uint64(size)}
}

// put submits a message, and reports whether there was room.
func (c *commander) put(m control64) bool {
	const length = uint64(unsafe.Sizeof(m))
	at := *word(c.producer)
	if at+8+length-atomic.LoadUint64(word(c.consumer)) > c.size {
		return false
	}
	data := c.producer[os.Getpagesize()+int(at&(c.size-1)):]
	*(*control64)(unsafe.Pointer(unsafe.SliceData(data[8:]))) = m
	atomic.StoreUint32((*uint32)(unsafe.Pointer(unsafe.SliceData(data))), uint32(length))
	atomic.StoreUint64(word(c.producer), at+8+length)
	return true
}

func (c *commander) ring() { atomic.StoreUint32(c.doorbell, 1) }

// send submits messages that take effect together.
func (c *commander) send(messages ...control64) {
	c.t.Helper()
	for _, m := range messages {
		if !c.put(m) {
			c.t.Fatal("no room for a control message")
		}
	}
	c.ring()
}

// A program changes its class under traffic; the change applies to the next packet.
func TestControls(t *testing.T) {
	onHooks(t, threeClasses, func(t *testing.T, k *kernel) {
		r, c := k.open("ctrl"), k.commander("ctrl")
		f := datagram(8080, "1234CTRL").bytes()
		for _, step := range []struct {
			name     string
			messages []control64
			frame    []byte
			verdict
			records, caplen int
		}{
			{"as configured", nil, f, dropped, 1, len(f)},
			{"stop", []control64{{Op: opStop}}, f, dropped, 0, 0}, // by the following class
			{"start", []control64{{Op: opStart}}, f, dropped, 1, len(f)},
			{"copy", []control64{{Op: opAction, Value: 3}}, f, passed, 1, len(f)},
			{"pass", []control64{{Op: opAction, Value: 0}}, f, passed, 0, 0},
			{"steal at most 70 bytes", []control64{{Op: opAction, Value: 4}, {Op: opMaxBytes, Value: 70}}, f, dropped,
				1, min(70, len(f))},
			{"deadline", []control64{{Op: opDeadline, Value: 5}}, f, dropped, 1, len(f)},
			{"other ports", []control64{{Op: opPorts, Index: 2, Value: 9000<<16 | 9010}}, datagram(9005, "1234CTRL").bytes(),
				dropped, 1, len(f)},
			{"the first one too", nil, f, dropped, 1, len(f)},
			{"no first one", []control64{{Op: opPorts, Value: 1 << 16}}, f, dropped, 0, 0},
			{"other payload",
				[]control64{{Op: opPayload, Value: 0<<16 | 2, Bytes: [8]byte{'X', 'Y'}, Mask: [8]byte{0xff, 0xff}}},
				datagram(9005, "XY34CTRL").bytes(), dropped, 1, len(f)},
			{"but not that", nil, datagram(9005, "YX34CTRL").bytes(), passed, 0, 0},
			{"any payload", []control64{{Op: opPayload}}, datagram(9005, "").bytes(), dropped, 1, 42},
		} {
			c.send(step.messages...)
			if v := k.run(step.frame); v != step.verdict {
				t.Errorf("%s: %s, want %s", step.name, v, step.verdict)
			}
			rec, frame := r.take()
			if n := r.drain(); (rec != nil) != (step.records == 1) || n != 0 || len(frame) != step.caplen {
				t.Errorf("%s: %+v, %d bytes, and %d more", step.name, rec, len(frame), n)
			}
		}
		if r.state.Deadline != 5 {
			t.Errorf("deadline %d", r.state.Deadline)
		}
	})
}

// Invalid messages change nothing, a flood is processed in batches, and a corrupt ring causes no error.
func TestHostileControls(t *testing.T) {
	onHooks(t, threeClasses, func(t *testing.T, k *kernel) {
		k.open("data")
		r, c := k.open("ctrl"), k.commander("ctrl")
		table := func() (e tableEntry) {
			if err := k.maps[mapTable].Lookup(k.half(), &e); err != nil {
				t.Fatal(err)
			}
			if e.Classes[0] != e.Classes[1] {
				t.Error("the two copies of the classes differ")
			}
			e.Version = 0
			return e
		}
		before := table()
		f := datagram(8080, "1234CTRL").bytes()
		for _, m := range []control64{{}, {Op: 99}, {Op: opAction, Value: 2}, {Op: opAction, Value: 1 << 40},
			{Op: opMaxBytes}, {Op: opMaxBytes, Value: 1 << 20},
			{Op: opPorts, Index: 8, Value: 1}, {Op: opPorts, Value: 1 << 33}, {Op: opPayload, Index: 4},
			{Op: opPayload, Value: 9}, {Op: opPayload, Value: 1 << 33}} {
			c.send(m)
			k.run(f)
			if table() != before {
				t.Errorf("%+v changed the classes", m)
			}
		}
		flood := 0
		for c.put(control64{Op: opMaxBytes, Value: uint64(100 + flood)}) {
			flood++
		}
		c.ring()
		packets := 0
		for ; *c.doorbell != 0; packets++ {
			k.run(f)
		}
		var rested uint64 // emulated machines process messages so slowly that the class is skipped for a while
		if err := k.maps["rests"].Lookup(uint32(c.slot), &rested); err != nil {
			t.Fatal(err)
		}
		if want := flood/16 + 1; packets < want || packets > want && rested == 0 ||
			table().Classes[0][0].MaxBytes != uint32(99+flood) {
			t.Errorf("%d messages took %d packets, want %d; the last set %d", flood, packets, want,
				table().Classes[0][0].MaxBytes)
		}
		r.drain()
		for i := range 100 {
			for at := range c.producer[os.Getpagesize():] {
				c.producer[os.Getpagesize()+at] = byte(i + at*i)
			}
			*word(c.producer) = uint64(i) * 0x123456789
			atomic.StoreUint32(c.doorbell, ^uint32(0))
			k.run(datagram(8080, "1234DATA").bytes())
		}
		if n := k.report("data").Packets; n != 100 {
			t.Errorf("%d packets of the other class, want 100", n)
		}
		if e := table(); e.Classes[0][1] != before.Classes[0][1] || e.Classes[0][2] != before.Classes[0][2] {
			t.Error("another class was changed")
		}
	})
}

// The kernel skips a ring full of invalid messages up to its producer position, and then does not read it for a while,
// so that packets are not delayed each time. Messages of other classes are processed.
func TestSkippedControls(t *testing.T) {
	onHooks(t, threeClasses, func(t *testing.T, k *kernel) {
		r, c, other := k.open("data"), k.commander("ctrl"), k.commander("data")
		data := c.producer[os.Getpagesize():]
		for at := 0; at < len(data); at += 8 {
			*(*uint32)(unsafe.Pointer(&data[at])) = 1 << 30 // discarded, without a length
		}
		atomic.StoreUint64(word(c.producer), 1<<40)
		f := datagram(8080, "1234DATA").bytes()
		for range 2 { // the first time in a while has no effect
			c.ring()
			k.run(f)
		}
		skipped := atomic.LoadUint64(word(c.consumer))
		for range 10 {
			c.ring()
			k.run(f)
		}
		if now := atomic.LoadUint64(word(c.consumer)); skipped == 0 || now != skipped {
			t.Errorf("the kernel skipped %d bytes with the first packets, %d with those behind it", skipped, now-skipped)
		}
		if err := k.maps["rests"].Put(uint32(c.slot), uint64(1)); err != nil { // as after a long time
			t.Fatal(err)
		}
		for range 3 {
			c.ring()
			k.run(f)
		}
		if now := atomic.LoadUint64(word(c.consumer)); now != 2*skipped {
			t.Errorf("a while later the kernel skipped %d bytes with two packets and none with the next, want %d", now-skipped,
				skipped)
		}
		if n := r.drain(); n != 15 {
			t.Errorf("%d records of the other class, want 15", n)
		}
		other.send(control64{Op: opStop})
		if k.run(f); r.drain() != 0 {
			t.Error("the other class does not take messages")
		}
	})
}

// A packet sees a message completely or not at all, although another CPU applies it concurrently: the class alternately
// matches A first or B second, so that A then B always matches, and B then A never.
func TestNoTornClass(t *testing.T) {
	onHooks(t, `{"classes": [{"name": "a", "match": {"payload": [{"bytes": "4141414141414141"}]}}, {"name": "b"}]}`,
		func(t *testing.T, k *kernel) {
			const packets, changed = 3000, 300 // minimum numbers
			c := k.commander("a")
			first := control64{Op: opPayload, Value: 0<<16 | 8, Bytes: [8]byte([]byte("AAAAAAAA")),
				Mask: [8]byte([]byte("\xff\xff\xff\xff\xff\xff\xff\xff"))}
			second := control64{Op: opPayload, Value: 8<<16 | 8, Bytes: [8]byte([]byte("BBBBBBBB")), Mask: first.Mask}
			var senders sync.WaitGroup
			var changes atomic.Int64
			var sent [2]uint64
			for i, payload := range []string{"AAAAAAAABBBBBBBB", "BBBBBBBBAAAAAAAA"} {
				senders.Go(func() {
					for ; sent[i] < packets || changes.Load() < changed; sent[i]++ {
						k.run(datagram(1000, payload).bytes())
					}
				})
			}
			done := make(chan struct{})
			go func() {
				senders.Wait()
				close(done)
			}()
			for running := true; running; {
				if c.put([]control64{second, first}[changes.Load()%2]) {
					changes.Add(1)
				}
				c.ring()
				select {
				case <-done:
					running = false
				default:
				}
			}
			for i, class := range []string{"a", "b"} {
				if n := k.report(class).Packets; n != sent[i] {
					t.Errorf("%d packets of class %s, want %d, with %d changes", n, class, sent[i], changes.Load())
				}
			}
		})
}

// A CPU that is preempted within a change, by the hypervisor or a task of higher priority, neither delays packets nor
// lets them pass: packets see the previous classes.
func TestStuckWriter(t *testing.T) {
	onHooks(t, `{"classes": [{"name": "no", "match": {"protocol": "udp", "ports": [7]}, "action": "drop"}]}`,
		func(t *testing.T, k *kernel) {
			var e tableEntry
			if err := k.maps[mapTable].Lookup(k.half(), &e); err != nil {
				t.Fatal(err)
			}
			for version := range uint32(4) {
				e.Version, e.Draining = version, 1
				written := &e.Classes[1-version&1][0]
				written.Stopped, written.Family = 1, 6
				if err := k.maps[mapTable].Put(k.half(), e); err != nil {
					t.Fatal(err)
				}
				if got := k.run(datagram(7, "x").bytes()); got != dropped {
					t.Errorf("version %d: a packet of a class that drops is %s", version, got)
				}
				*written = e.Classes[version&1][0]
			}
		})
}

// Processors with weak memory ordering (arm64) need barriers where a table changes its owner, and BPF's only ones are
// atomic operations that return a value (Documentation/atomic_t.txt). Emulation on x86 cannot reveal a missing one.
// Therefore the test checks the instructions.
func TestChangesAreOrdered(t *testing.T) {
	at := int16(unsafe.Offsetof(tableEntry{}.Version))
	p := pkgstest.Package(t)
	for _, hook := range []chain.Hook{chain.XDP, chain.TC} {
		spec, err := p.Spec(string(hook))
		if err != nil {
			t.Fatal(err)
		}
		function, flips, look, ordered := "", 0, 0, 0
		for _, prog := range spec.Programs {
			for _, ins := range prog.Instructions {
				if s := ins.Symbol(); s != "" {
					function, look = s, 0
				}
				atomic := ins.OpCode.Class() == asm.StXClass && ins.OpCode.Mode() == asm.AtomicMode
				fetches := atomic && ins.Constant&unix.BPF_FETCH != 0
				word := atomic && ins.Offset == at && ins.OpCode.Size() == asm.Word
				switch {
				case word && !fetches:
					t.Errorf("%s, %s: an atomic addition to the version is no barrier: %v", hook, function, ins)
				case word:
					flips++
				case function == "icpt_classes_match" && fetches && look == 1:
					look = 2
				case function == "icpt_classes_match" && ins.OpCode.Class() == asm.LdXClass && ins.Offset == at:
					if look == 2 {
						ordered++
					}
					look = max(look, 1)
				}
			}
		}
		if flips == 0 || ordered == 0 {
			t.Errorf("%s: %d changes of the version, %d second examines it behind a barrier", hook, flips, ordered)
		}
	}
}
