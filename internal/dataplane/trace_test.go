// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

func TestTraceTellsWhoDropped(t *testing.T) {
	for name, c := range map[string]struct {
		side chain.Side
		opts Options
		host func(*world) *netlab.Host
		dir  chain.Direction
	}{
		"tc":     {chain.OnTCIngress, Options{}, hostA, chain.Egress},
		"clsact": {chain.OnTCEgress, Options{NoTCX: true}, hostB, chain.Ingress},
		"xdp":    {chain.OnXDP, Options{}, hostA, chain.Egress},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, c.opts)
			p := chain.Point{Ifindex: c.host(w).OuterIndex(), Side: c.side}
			pass, drop := testModule(t, "pass", "count", nil), testModule(t, "drop", "dropper", map[string]any{"port": 53})
			spec := w.deploy(t, p, c.dir, pass, drop)
			filter := TraceFilter{Proto: 17, Port: 53, Addr: netip.PrefixFrom(w.b.Addr4(), 31), Bytes: TraceBytes}
			trace, err := w.Trace(filter, map[chain.Point]chain.Spec{p: spec},
				map[string]Module{"count": pass, "dropper": drop})
			if err != nil {
				t.Fatal(err)
			}
			defer trace.Close()
			if !w.passes(t, 54) || !w.dropped(t, 53) {
				t.Error("the chain does not drop port 53 alone")
			}
			for i, want := range []struct {
				position uint8
				verdict  kerbabi.Verdict
				note     uint16
			}{{traceHead, kerbabi.Next, 0}, {0, kerbabi.Next, 0}, {1, kerbabi.Drop, 1}} {
				e, err := trace.Read(time.Now().Add(30 * time.Second))
				if err != nil {
					t.Fatal(err)
				}
				if e.Position != want.position || kerbabi.Verdict(e.Verdict) != want.verdict || e.Packet == 0 || e.DestPort != 53 ||
					e.Addr(e.SourceAddr) != w.a.Addr4() || e.Addr(e.DestAddr) != w.b.Addr4() {
					t.Errorf("event %d: %+v", i, e)
				}
				if key, value := e.Note(); key != want.note || value != 53*uint64(want.note) {
					t.Errorf("event %d has the note %d = %d", i, key, value)
				}
				if e.Head() != (e.Elapsed == 0) || e.Elapsed > uint64(time.Second) {
					t.Errorf("event %d has taken %d ns", i, e.Elapsed)
				}
				checkFrame(t, e)
			}
			if err := w.Attach(p, spec); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// checkFrame checks the bytes of a packet's first event, which is shorter than their limit: they are the frame.
func checkFrame(t *testing.T, e TraceEvent) {
	t.Helper()
	if !e.Head() {
		if len(e.Bytes) != 0 {
			t.Errorf("bytes of a packet after a module: %x", e.Bytes)
		}
		return
	}
	p := gopacket.NewPacket(e.Bytes, layers.LayerTypeEthernet, gopacket.Default)
	udp, ok := p.Layer(layers.LayerTypeUDP).(*layers.UDP)
	if len(e.Bytes) != int(e.Len) || !ok || udp.DstPort != layers.UDPPort(e.DestPort) || string(udp.Payload) != "kerb" {
		t.Errorf("%d bytes of a frame of %d: %v", len(e.Bytes), e.Len, p)
	}
}

// datagram sends one of so many bytes from a to b.
func (w *world) datagram(t *testing.T, port, length int) {
	t.Helper()
	err := w.a.Do(func() error {
		c, err := net.Dial("udp4", netip.AddrPortFrom(w.b.Addr4(), uint16(port)).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(make([]byte, length))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A longer packet has as many bytes as were requested, and a prefix that it is not of hides it.
func TestTraceBytes(t *testing.T) {
	for _, side := range []chain.Side{chain.OnTCIngress, chain.OnXDP} {
		t.Run(string(side), func(t *testing.T) {
			w := newWorld(t, Options{})
			for _, c := range []struct {
				length, bytes, want int
				addr                netip.Prefix
			}{
				{1000, TraceBytes, TraceBytes, netip.Prefix{}}, {1000, 60, 60, netip.Prefix{}}, {1000, 0, 0, netip.Prefix{}},
				{20, 200, 14 + 20 + 8 + 20, netip.PrefixFrom(w.b.Addr4(), 8)},
			} {
				e, err := w.traceOne(t, side, TraceFilter{Proto: 17, Port: 55, Addr: c.addr, Bytes: c.bytes}, c.length)
				if err != nil || len(e.Bytes) != c.want || int(e.Len) != 14+20+8+c.length {
					t.Errorf("%+v: %d bytes of %d, %v", c, len(e.Bytes), e.Len, err)
				}
			}
			other := TraceFilter{Proto: 17, Port: 55, Addr: netip.MustParsePrefix("203.0.113.0/24")}
			if e, err := w.traceOne(t, side, other, 20); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a packet of another prefix is shown: %+v, %v", e, err)
			}
		})
	}
}

// traceOne sends a datagram from a to b, and returns the first event of a trace.
func (w *world) traceOne(t *testing.T, side chain.Side, f TraceFilter, length int) (TraceEvent, error) {
	t.Helper()
	p := chain.Point{Ifindex: w.a.OuterIndex(), Side: side}
	pass := testModule(t, "pass", "count", nil)
	spec := w.deploy(t, p, chain.Egress, pass)
	trace, err := w.Trace(f, map[chain.Point]chain.Spec{p: spec}, map[string]Module{"count": pass})
	if err != nil {
		t.Fatal(err)
	}
	defer trace.Close()
	w.datagram(t, int(f.Port), length)
	e, err := trace.Read(time.Now().Add(time.Second))
	if err := w.Attach(p, spec); err != nil {
		t.Fatal(err)
	}
	return e, err
}

// A chain in several parts is traced in parts, which outlive the agent: their table is pinned until plain chains are
// back.
func TestTraceOfSplitChain(t *testing.T) {
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("millions of verified instructions take minutes in an emulated machine")
	}
	w := newWorld(t, Options{})
	p := chain.Point{Ifindex: w.a.OuterIndex(), Side: chain.OnTCIngress}
	mods := map[string]Module{}
	var list []Module
	for _, name := range []string{"h1", "h2", "h3"} {
		mods[name] = testModule(t, "huge", name, nil)
		list = append(list, mods[name])
	}
	spec := w.deploy(t, p, chain.Egress, list...)
	trace, err := w.Trace(TraceFilter{Proto: 17, Port: 54}, map[chain.Point]chain.Spec{p: spec}, mods)
	if err != nil {
		t.Fatal(err)
	}
	defer trace.Close()
	if !w.passes(t, 54) {
		t.Error("a traced chain does not pass what the plain one passes")
	}
	var packet uint64
	for i, want := range []uint8{traceHead, 0, 1, 2} {
		e, err := trace.Read(time.Now().Add(30 * time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if e.Head() {
			packet = e.Packet
		}
		if e.Position != want || kerbabi.Verdict(e.Verdict) != kerbabi.Next || e.DestPort != 54 || e.Packet != packet {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	tables := func() []string {
		found, err := filepath.Glob(filepath.Join(w.layout.traces(), "*"))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := tables(); len(found) != 1 {
		t.Errorf("pinned while the trace runs: %v", found)
	}
	if err := w.Attach(p, spec); err != nil {
		t.Fatal(err)
	}
	if err := w.ForgetTraces(); err != nil || len(tables()) != 0 {
		t.Errorf("pinned after it: %v (%v)", tables(), err)
	}
}

// A session that wants slow packets gets all events of these, and none of the others: those need no room.
func TestTraceOfSlowPackets(t *testing.T) {
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("an emulated machine is slow with any packet")
	}
	for _, side := range []chain.Side{chain.OnTCIngress, chain.OnXDP} {
		t.Run(string(side), func(t *testing.T) {
			w := newWorld(t, Options{})
			p := chain.Point{Ifindex: w.a.OuterIndex(), Side: side}
			drop := testModule(t, "drop", "dropper", map[string]any{"port": 53})
			spin := testModule(t, "spin", "slow", map[string]any{"steps": 20000})
			spec := w.deploy(t, p, chain.Egress, drop, spin)
			trace := func(f TraceFilter) *Trace {
				s, err := w.Trace(f, map[chain.Point]chain.Spec{p: spec}, map[string]Module{"dropper": drop, "slow": spin})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(s.Close)
				return s
			}
			slow := trace(TraceFilter{Proto: 17, Bytes: 60, SlowerThan: slowTime})
			none := trace(TraceFilter{Proto: 17, SlowerThan: time.Minute})
			all := trace(TraceFilter{Proto: 17})
			const moreThanFit = 10000
			for range moreThanFit {
				w.datagram(t, 53, 20)
			}
			if all.Lost() == 0 {
				t.Fatal("all events of the packets that are not slow have found room: the test sends too few")
			}
			w.datagram(t, 54, 100)
			for events := slowPacket(t, slow); events[0].DestPort != 54; events = slowPacket(t, slow) {
				t.Logf("a packet was interrupted: %+v", events) // that is slow as well
			}
			for s, name := range map[*Trace]string{slow: "slow packets", none: "packets of a minute"} {
				e, err := s.Read(time.Now().Add(50 * time.Millisecond))
				if !errors.Is(err, os.ErrDeadlineExceeded) || s.Lost() > 0 {
					t.Errorf("%s: %+v, %v, %d lost", name, e, err, s.Lost())
				}
			}
			if err := w.Attach(p, spec); err != nil {
				t.Fatal(err)
			}
		})
	}
}

const slowTime = 10 * time.Microsecond // 20,000 steps take longer

// slowPacket returns the events of a packet on which the modules drop and spin took longer than that.
func slowPacket(t *testing.T, s *Trace) (events []TraceEvent) {
	t.Helper()
	took := uint64(0)
	for position := range uint8(3) {
		e, err := s.Read(time.Now().Add(30 * time.Second))
		if err != nil ||
			e.Position != position-1 || e.Head() != (len(e.Bytes) == 60) || e.DestPort != 53 && e.DestPort != 54 {
			t.Fatalf("event %d: %+v, %v", position, e, err)
		}
		took += e.Elapsed
		events = append(events, e)
		if e.Verdict == uint8(kerbabi.Drop) {
			break
		}
	}
	if took <= uint64(slowTime) {
		t.Errorf("the modules took %d ns: %+v", took, events)
	}
	return events
}
