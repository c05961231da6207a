// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// loop has a fallback: the answer is the request's step, and -2.5 times its state plus 7.
const loop = `{"classes": [{"name": "loop", "action": "steal", "deadline": "20ms", "watchdog": "10s", "ring": "64Ki",
	"match": {"protocol": "udp", "ports": [5005], "payload": [{"bytes": "43"}]},
	"fallback": {"app": "linear", "reply": "0000000000000000", "copy": [{"from": 4, "to": 0}],
		"sum": [{"from": 8, "times": -2.5}], "constant": 7, "to": 4, "sourceRate": 0}}, {"name": "rest"}]}`

// stateFrame returns a request to a controller, with correct checksums.
func stateFrame(from, to string, step uint32, value int32) []byte {
	payload := binary.BigEndian.AppendUint32([]byte("CTRL"), step)
	f := packet(from, to, udp, 40000, 5005, string(binary.BigEndian.AppendUint32(payload, uint32(value))))
	raw := f.bytes()
	sum := func(b []byte, s uint32) uint16 {
		for i := 0; i < len(b); i += 2 {
			s += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		for s > 0xffff {
			s = s&0xffff + s>>16
		}
		return ^uint16(s)
	}
	if f.src.Is4() {
		binary.BigEndian.PutUint16(raw[24:], sum(raw[14:34], 0))
	} else {
		addresses := append(f.src.AsSlice(), f.dst.AsSlice()...)
		binary.BigEndian.PutUint16(raw[60:], sum(append(addresses, raw[54:]...), uint32(len(raw)-54)+udp))
	}
	return raw
}

const (
	plant, controller   = "10.0.0.1", "10.0.0.2"
	plant6, controller6 = "fd00::1", "fd00::2"
)

// lawful checks that a request is answered by the fallback.
func (k *kernel) lawful(what string, raw []byte, step uint32, push int32) {
	k.t.Helper()
	v, reply := k.runOut(raw)
	if v != answered {
		k.t.Errorf("%s: %s", what, v)
		return
	}
	at := 42
	if raw[12] == 0x86 {
		at = 62
	}
	want := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, step), uint32(push))
	if !bytes.Equal(reply[at:at+8], want) || binary.BigEndian.Uint16(reply[at-4:]) != 16 ||
		!bytes.Equal(reply[:6], raw[6:12]) || binary.BigEndian.Uint16(reply[at-6:]) != 40000 {
		k.t.Errorf("%s: %x, want the answer %x", what, reply, want)
	}
}

// The fallback answers while no program has the class open, or while its program has not read a packet within the
// deadline, independent of the contents of its page, until that packet is read.
func TestFallback(t *testing.T) {
	onHooks(t, loop, func(t *testing.T, k *kernel) {
		k.lawful("no program", stateFrame(plant, controller, 1, 1000), 1, -2493)
		k.lawful("no program, IPv6", stateFrame(plant6, controller6, 2, -3), 2, 15) // 7.5, rounded up
		r := k.open("loop")
		for round := range uint32(3) {
			for range 5 {
				if v := k.run(stateFrame(plant, controller, 3, 0)); v != dropped || r.drain() != 1 {
					t.Fatalf("round %d: a program that reads: %s", round, v)
				}
			}
			if v := k.run(stateFrame(plant, controller, 3, 0)); v != dropped {
				t.Fatalf("round %d: the first one that it does not read: %s", round, v)
			}
			r.state.Watchdog, r.state.Deadline = 1<<62, 1<<62
			time.Sleep(40 * time.Millisecond) // twice the deadline
			for range 3 {
				k.lawful("the program does not read", stateFrame(plant, controller, round, 4), round, -3)
			}
			if n := r.drain(); n != 1 {
				t.Errorf("round %d: %d records, want the one from before", round, n)
			}
		}
		if c := k.report("loop"); c.Fallbacks != 11 || c.Unread != 11 || c.Delivered != 18 || c.Answered != 0 {
			t.Errorf("%+v", c)
		}
	})
}

// Requests that the responder would not answer pass, as without a fallback.
func TestFallbackChecksRequests(t *testing.T) {
	onHooks(t, loop, func(t *testing.T, k *kernel) {
		right := stateFrame(plant, controller, 1, 1)
		edit := func(change func(f []byte)) []byte {
			f := bytes.Clone(right)
			change(f)
			return f
		}
		short := packet(plant, controller, udp, 40000, 5005, "CTRL1234567").bytes()
		for name, raw := range map[string][]byte{
			"too short":         short,
			"header checksum":   edit(func(f []byte) { f[25]++ }),
			"checksum":          edit(func(f []byte) { f[40] = 1 }),
			"to a group":        edit(func(f []byte) { f[0] |= 1 }),
			"length of UDP":     edit(func(f []byte) { f[39] = 200 }),
			"from port 7":       edit(func(f []byte) { f[34], f[35] = 0, 7 }),
			"from its own port": edit(func(f []byte) { f[34], f[35] = 5005>>8, 5005&0xff }),
		} {
			if v, out := k.runOut(raw); v != passed || !bytes.Equal(out, raw) {
				t.Errorf("%s: %s %x", name, v, out)
			}
		}
		for n := 34; n < len(right); n++ { // test runs on TC accept nothing shorter
			if v := k.run(right[:n]); v != passed {
				t.Errorf("%d bytes: %s", n, v)
			}
		}
		if c := k.report("loop"); c.Fallbacks != 0 {
			t.Errorf("%+v", c)
		}
		k.lawful("right", right, 1, 5) // 4.5, rounded up
	})
}

// Packets without room are answered, and so are those of a program that reads too slowly.
func TestFallbackOfASlowProgram(t *testing.T) {
	onHooks(t, strings.Replace(loop, `"20ms"`, `"10s"`, 1), func(t *testing.T, k *kernel) {
		r, lost := k.open("loop"), 0
		for range 1000 {
			if k.run(stateFrame(plant, controller, 1, 2)) == answered {
				lost++
			}
		}
		c := k.report("loop")
		if lost == 0 || c.Lost != uint64(lost) || c.Fallbacks != uint64(lost) || r.drain() != 1000-lost {
			t.Errorf("%d were answered: %+v", lost, c)
		}
	})
	onHooks(t, loop, func(t *testing.T, k *kernel) {
		r := k.open("loop")
		for range 30 {
			k.run(stateFrame(plant, controller, 1, 2))
		}
		r.take()
		if v := k.run(stateFrame(plant, controller, 1, 2)); v != dropped {
			t.Fatalf("it reads: %s", v)
		}
		time.Sleep(40 * time.Millisecond) // twice the deadline: 30 packets wait, the last of them this long
		r.take()
		k.lawful("it reads too slowly", stateFrame(plant, controller, 1, 2), 1, 2)
		r.drain()
		if v := k.run(stateFrame(plant, controller, 1, 2)); v != dropped {
			t.Errorf("it has read all: %s", v)
		}
	})
}

// The log reports at intervals that the fallback answers, without earlier answers.
func TestFallbackIsLogged(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	k := load(t, chain.XDP, chain.Ingress, loop)
	misses := newMissLog("m")
	k.run(stateFrame(plant, controller, 1, 2))
	misses.logFallbacks(k.Classes, k.maps)
	misses.logFallbacks(k.Classes, k.maps)
	if log.Len() > 0 {
		t.Errorf("before a packet: %s", &log)
	}
	for range 3 {
		k.run(stateFrame(plant, controller, 1, 2))
		k.run(stateFrame(plant, controller, 1, 2))
		misses.logFallbacks(k.Classes, k.maps)
	}
	text := log.String()
	if strings.Count(text, "\n") != 1 || !strings.Contains(text, "class=loop packets=2 deadline=20ms") {
		t.Errorf("the log says %q", text)
	}
}

// Another CPU received its packet later, but delivered it first: the waiting record is newer than this packet.
func TestFallbackWithAnotherCPUAhead(t *testing.T) {
	onHooks(t, loop, func(t *testing.T, k *kernel) {
		k.open("loop")
		if v := k.run(stateFrame(plant, controller, 1, 1)); v != dropped {
			t.Fatal(v)
		}
		f := k.flow()
		f.Since += uint64(time.Hour) // in reality a microsecond
		if err := k.maps[mapFlows].Put(uint32(0), &f); err != nil {
			t.Fatal(err)
		}
		if v := k.run(stateFrame(plant, controller, 1, 1)); v != dropped {
			t.Errorf("the record is younger than the packet: %s", v)
		}
	})
}

func (k *kernel) flow() (f flowEntry) {
	k.t.Helper()
	if err := k.maps[mapFlows].Lookup(uint32(0), &f); err != nil {
		k.t.Fatal(err)
	}
	return f
}

// A packet without room is not a waiting record: the next one has its own age.
func TestFallbackForgetsWhatFoundNoRoom(t *testing.T) {
	patient := strings.Replace(loop, "20ms", "9s", 1) // the ring is full earlier, also on an emulated machine
	onHooks(t, patient, func(t *testing.T, k *kernel) {
		r := k.open("loop")
		for k.run(stateFrame(plant, controller, 1, 1)) == dropped {
		}
		r.take()
		before, large := k.flow(), packet(plant, controller, udp, 40000, 5005, "C"+strings.Repeat("x", 400)).bytes()
		if v := k.run(large); v == dropped || k.flow().Lost != before.Lost+1 {
			t.Fatalf("a large one finds room: %s", v)
		}
		if after := k.flow(); after.Position != before.Position || after.Since != before.Since {
			t.Errorf("%+v, want position and time of %+v", after, before)
		}
		if v := k.run(stateFrame(plant, controller, 2, 1)); v != dropped || k.flow().Since == before.Since {
			t.Errorf("a small one: %s, %+v", v, k.flow())
		}
	})
}

// A program that has closed its class keeps ring, page and control messages mapped: the fallback answers, independent
// of what it writes there, and of its previous changes.
func TestFallbackAfterTheProgram(t *testing.T) {
	onHooks(t, loop, func(t *testing.T, k *kernel) {
		r, c := k.open("loop"), k.commander("loop")
		g := &running{Intercept: k.Intercept, live: sdk.Live{Maps: k.maps}, half: int(k.half())}
		for _, m := range []control64{{Op: opStop}, {Op: opAction, Value: 0}, {Op: opPayload, Value: 1, Mask: [8]byte{255}}} {
			k.setConsumer(c.slot, 1)
			c.send(m)
			if v := k.run(stateFrame(plant, controller, 1, 1)); v != passed {
				t.Fatalf("%+v: %s", m, v)
			}
			c.send(m) // no packet arrives while the program has the class open
			g.vacate(k.class("loop"), k.pages)
			k.lawful("the program has gone", stateFrame(plant, controller, 1, 1), 1, 5)
			c.send(m)
			*(*[pageBytes]byte)(unsafe.Pointer(r.state)) = [pageBytes]byte(bytes.Repeat([]byte{1}, pageBytes))
			for range 3 {
				k.lawful("a former program", stateFrame(plant, controller, 1, 1), 1, 5)
				*word(r.consumer) = *word(r.producer)
			}
		}
	})
}

// A program cannot make answers leave from a port other than the configured one.
func TestFallbackKeepsItsPort(t *testing.T) {
	onHooks(t, loop, func(t *testing.T, k *kernel) {
		raw := stateFrame(plant, controller, 1, 1)
		raw[36], raw[37], raw[40], raw[41] = 0, 53, 0, 0
		c := k.commander("loop")
		c.send(control64{Op: opPorts, Value: 0xffff}, control64{Op: opPorts, Index: 7, Value: 0xffff})
		for consumer := range uint32(2) {
			if v := k.run(raw); v != passed {
				t.Errorf("to port 53: %s", v)
			}
			k.setConsumer(c.slot, consumer)
		}
	})
}
