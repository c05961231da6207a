// SPDX-License-Identifier: Apache-2.0

package classifier_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/modules/classifier/extract"
)

// Indices of counts: enum cls_count.
const (
	countPackets = iota
	countNotOurs
	countTruncated
	countMalformed
	countNoSource
	countSecured
	countRepeats
	countMessages
	countProbation
	countAdmitted
	countEvaluated
	countEmpty
	countNoModel
	countPositive
	countNoRoom
	countAllowed
	countWatched
	countMarked
	countLimited
	countDropped
	countDroppedSecured
	countBothHarmless
	countBothPositive
	countOnlyLive
	countOnlyShadow
	countSameClass
)

const inUser = uint8(3) // cls_deferred: windows go to the control plane

// sameWindow compares a window of the kernel with the expected one; nil means none.
func sameWindow(t *testing.T, k *kernel, of key, want []int64, time uint64) {
	t.Helper()
	w, ok := k.taken(of)
	if !ok {
		t.Fatalf("no window of %x", of.Addr)
	}
	if w.Time != time {
		t.Fatalf("the window of %x ends at %d, not %d", of.Addr, w.Time, time)
	}
	for i, v := range want {
		if int64(w.Values[i]) != v {
			t.Fatalf("feature %d of %x is %d, want %d\ngot  %v\nwant %v", i, of.Addr, w.Values[i], v, w.Values, want)
		}
	}
}

// compare passes frames to both, and compares all windows and counts.
func compare(t *testing.T, k *kernel, x *extract.RPL, wrap func([]byte) []byte,
	next func() (now uint64, frame []byte)) (windows int) {
	t.Helper()
	for {
		now, frame := next()
		if frame == nil {
			break
		}
		packet := wrap(frame)
		if len(packet) < 14 { // too short for test runs
			continue
		}
		k.at(now)
		k.run(packet)
		if w := x.Frame(now, frame); w != nil {
			windows++
			sameWindow(t, k, nodeKey(w.Source), w.Values, w.Time)
			if t.Failed() {
				t.Fatalf("frame %x", frame)
			}
		}
	}
	if n := k.len("windows"); n != 0 {
		t.Errorf("%d windows too many", n)
	}
	if got := k.len("records"); got != x.Nodes() {
		t.Errorf("%d nodes, want %d", got, x.Nodes())
	}
	for what, want := range map[uint32]uint64{
		countTruncated: x.Outcomes[extract.Truncated], countMalformed: x.Outcomes[extract.Malformed],
		countSecured: x.Outcomes[extract.Secured], countRepeats: x.Repeats,
	} {
		if got := k.count(what); got != want {
			t.Errorf("count %d is %d, want %d", what, got, want)
		}
	}
	t.Logf("%d windows, %d nodes, outcomes %v, %d repeats", windows, x.Nodes(), x.Outcomes, x.Repeats)
	return windows
}

func TestDifferentialRPL(t *testing.T) {
	const frames = 4000
	configs := map[string]extract.Config{
		"tumbling": {Window: time.Second, Repeat: 250 * time.Millisecond},
		"sliding":  {Window: 2 * time.Second, Sliding: true, Repeat: 100 * time.Millisecond, CountSecured: true},
		"each":     {Window: time.Second},
	}
	for i, w := range wrappings {
		for name, c := range configs {
			if i > 0 && name != "sliding" {
				continue
			}
			t.Run(w.name+"/"+name, func(t *testing.T) {
				k := load(t, hooks[i%len(hooks)], with(w.config, constants(c)))
				r := &randomFrames{Rand: rand.New(rand.NewPCG(uint64(i), 1))}
				now, n := 100*second, 0
				windows := compare(t, k, extract.NewRPL(c), w.wrap, func() (uint64, []byte) {
					if n++; n > frames {
						return 0, nil
					}
					now += pick[uint64](r, 0, 1e6, 5e6, 10e6, 60e6)
					if r.IntN(100) == 0 {
						now += uint64(r.IntN(4)) * second
					}
					return now, r.frame()
				})
				if windows < 200 {
					t.Errorf("only %d windows were compared", windows)
				}
			})
		}
	}
}

// constants returns the data plane's constants for a config.
func constants(c extract.Config) settings {
	s := settings{"window_ns": uint64(c.Window), "sliding": c.Sliding, "repeat_ns": uint64(c.Repeat), "by_peer": c.ByPeer,
		"deferred": inUser, "capacity": uint32(1 << 20)}
	if c.CountSecured {
		s["secured"] = uint8(1)
	}
	return s
}

// flowCase is a flow between two addresses, as packets and for the extractor.
type flowCase struct {
	extract.Flow
	family int
}

func (r *randomFrames) flow() flowCase {
	f := flowCase{family: pick(r, 4, 6)}
	host := byte(r.IntN(3))
	if f.family == 4 {
		f.Remote, f.Local = netip.AddrFrom4([4]byte{192, 0, 2, host}), netip.AddrFrom4([4]byte{10, 0, 0, 1})
	} else {
		f.Remote, f.Local = netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", host+1)), netip.MustParseAddr("2001:db8:1::1")
	}
	f.Proto = pick[uint8](r, 6, 6, 17, 1, 132)
	if f.Proto == 1 && f.family == 6 {
		f.Proto = 58
	}
	if f.Proto == 6 || f.Proto == 17 {
		f.RemotePort, f.LocalPort = uint16(1000+r.IntN(3)), 80
	}
	return f
}

// packet returns a packet of the flow, and its form for the extractor.
func (f *flowCase) packet(r *randomFrames, fromLocal bool) ([]byte, *extract.Packet) {
	p := &extract.Packet{Flow: f.Flow, FromLocal: fromLocal}
	src, dst, sport, dport := f.Remote, f.Local, f.RemotePort, f.LocalPort
	if fromLocal {
		src, dst, sport, dport = dst, src, dport, sport
	}
	size := pick(r, 0, 0, 1, 8, 60, 500, 1200)
	ports := be.AppendUint16(be.AppendUint16(nil, sport), dport)
	var l4 []byte
	switch f.Proto {
	case 6:
		p.Flags = byte(r.IntN(64))
		options := 4 * r.IntN(4)
		l4 = slices.Concat(ports, make([]byte, 8), []byte{byte(5+options/4) << 4, p.Flags | 0x40}, make([]byte, 6+options))
	case 17:
		l4 = slices.Concat(ports, be.AppendUint16(nil, uint16(8+size)), []byte{0, 0})
	case 1, 58:
		l4 = []byte{8, 0, 0, 0, 0, 1, 0, 1}
	}
	p.Payload = size > 0
	l4 = append(l4, make([]byte, size)...)
	if f.family == 4 && r.IntN(10) == 0 { // a later fragment
		p.Later, p.Flags, p.RemotePort, p.LocalPort, p.Payload = true, 0, 0, 0, len(l4) > 0
	}
	ip := ipPacket(src, dst, f.Proto, l4, p.Later)
	p.Length = uint64(len(ip))
	if len(ip) < 46 && r.IntN(2) == 0 {
		ip = append(ip, make([]byte, 46-len(ip))...) // Ethernet's padding is not the datagram's
	}
	if f.family == 4 {
		p.Remote, p.Local = netip.AddrFrom16(p.Remote.As16()), netip.AddrFrom16(p.Local.As16())
		return ethernet(0x800, ip), p
	}
	return ethernet(0x86dd, ip), p
}

func ipPacket(src, dst netip.Addr, proto byte, payload []byte, later bool) []byte {
	if src.Is4() {
		h := slices.Concat([]byte{0x45, 0, 0, 0, 0, 7, 0, 0, 64, proto, 0, 0}, src.AsSlice(), dst.AsSlice())
		be.PutUint16(h[2:], uint16(20+len(payload)))
		if later {
			h[7] = 100
		}
		return append(h, payload...)
	}
	h := []byte{0x60, 0, 0, 0, 0, 0, proto, 64}
	be.PutUint16(h[4:], uint16(len(payload)))
	return slices.Concat(h, src.AsSlice(), dst.AsSlice(), payload)
}

func flowKey(f extract.Flow) key {
	k := key{Addr: f.Remote.As16(), Ifindex: testIndex, Proto: f.Proto, Kind: 1}
	if f.Local.IsValid() {
		k.Local = f.Local.As16()
	}
	be.PutUint16(k.Port[:], f.RemotePort)
	be.PutUint16(k.LocalPort[:], f.LocalPort)
	return k
}

// TestDifferentialFlow runs both directions on one set of maps.
func TestDifferentialFlow(t *testing.T) {
	configs := map[string]extract.Config{
		"tumbling": {Window: time.Second}, "sliding": {Window: 4 * time.Second, Sliding: true},
		"peer": {Window: time.Second, ByPeer: true},
	}
	for name, c := range configs {
		t.Run(name, func(t *testing.T) {
			in := load(t, hooks[len(name)%2], with(constants(c), settings{"extractor": uint8(1)}))
			out := in.otherWay()
			x := extract.NewFlows(c)
			r := &randomFrames{Rand: rand.New(rand.NewPCG(7, 7))}
			windows, now := 0, 100*second
			for range 6000 {
				now += pick[uint64](r, 0, 300, 5000, 1e6, 5e6, 30e6)
				f, fromLocal := r.flow(), r.IntN(2) == 0
				packet, want := f.packet(r, fromLocal)
				in.at(now)
				if fromLocal {
					out.run(packet)
				} else {
					in.run(packet)
				}
				if w := x.Packet(now, want); w != nil {
					windows++
					sameWindow(t, in, flowKey(w.Source), w.Values, w.Time)
				}
			}
			if n := in.len("windows"); n != 0 || windows < 100 {
				t.Errorf("%d windows were compared, %d too many", windows, n)
			}
		})
	}
}
