// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// twin is the proxy in the kernel and its model, with the same services.
type twin struct {
	*kernel
	model
	r         *rand.Rand
	clients   []netip.Addr
	vips      []netip.Addr
	instances []*modelInstance
	fresh     netip.Addr // next address of a redeployed instance
}

func newTwin(t *testing.T, v4 bool, seed uint64) *twin {
	w := &twin{kernel: loadProxy(t, map[string]any{"source_instance": true}), r: rand.New(rand.NewPCG(seed, 5)),
		model: model{services: map[netip.Addr]*modelService{}, forward: map[modelFlow]*modelSession{},
			reverse: map[modelFlow]*modelSession{}, names: map[netip.Addr]netip.Addr{}}}
	client, vip, at := addr("10.18.0.2"), addr("10.30.0.2"), addr("10.19.0.2")
	w.fresh = addr("10.20.0.2")
	if !v4 {
		client, vip, at, w.fresh = addr("fd00::2"), addr("fdff:2000::2"), addr("fd01::2"), addr("fd02::2")
	}
	w.clients = []netip.Addr{client, client.Next(), client.Next().Next()}
	named := addr("10.31.0.2")
	if !v4 {
		named = addr("fdff:3000::2")
	}
	for _, c := range w.clients[:2] {
		w.setName(c, named, 0)
		named = named.Next()
	}
	for i := range 12 {
		in := &modelInstance{index: w.addInstance(0, at.String()), addr: at, generation: 2}
		if i%2 == 0 {
			in.virtual = named
			w.put(mapNames, keyOf(in.index, v4), name{Other: addressOf(named)})
			named = named.Next()
		}
		w.instances = append(w.instances, in)
		at = at.Next()
	}
	for i, policy := range []uint8{policyTurns, policyLeast, policyHashSource, policyHashFlow, policyTurns} {
		s := &modelService{policy: policy, instances: w.instances[2*i : 2*i+3]} // neighbours share one
		if policy >= policyHashSource {
			for range 20 {
				s.instances = append(slices.Clone(s.instances), s.instances[w.r.IntN(3)])
			}
		}
		var run []uint32
		for _, in := range s.instances {
			run = append(run, in.index)
		}
		flags := uint8(0)
		if i == 0 || i == 3 {
			flags, s.ports = vipPorts, map[uint16]uint16{80: 8080 + uint16(i), 81: 81}
		}
		id := w.addVIP(vip.String(), policy, flags, run...)
		for from, to := range s.ports {
			w.addPort(id, protoTCP, from, to)
			w.addPort(id, protoUDP, from, to)
		}
		w.services[vip] = s
		w.vips = append(w.vips, vip)
		vip = vip.Next()
	}
	return w
}

// setName sets the name of a client; a retired one is for existing sessions.
func (w *twin) setName(client, virtual netip.Addr, flags uint32) {
	w.put(mapNames, nameKey{addressOf(client), testIfindex}, name{addressOf(virtual), flags})
	w.names[client] = virtual
	if flags != 0 {
		delete(w.names, client)
	}
}

// request returns a packet from a client. Each source port belongs to one virtual address, so that sessions do not
// conflict.
func (w *twin) request() packet {
	n := w.r.IntN(len(w.vips) + 1)
	p := packet{src: w.clients[w.r.IntN(len(w.clients))], dst: w.clients[0].Prev(), proto: protoUDP, sport: 65535,
		dport: 80, payload: []byte("request")}
	if n < len(w.vips) {
		p.dst = w.vips[n]
	}
	p.sport -= uint16(n*40 + w.r.IntN(20))
	p.dport += uint16(w.r.IntN(3))
	p.sport -= (p.dport - 80) * 400 // and a port
	p.noCheck = w.r.IntN(4) == 0 && p.src.Is4()
	if w.r.IntN(2) == 0 {
		p.proto, p.noCheck, p.seq, p.ack = protoTCP, false, 7, 8
		p.flags = []uint8{tcpSYN, tcpSYN, tcpACK, tcpACK, tcpACK | tcpFIN, tcpRST}[w.r.IntN(6)]
	}
	w.extend(&p)
	return p
}

// extend adds an IPv6 extension header of random length before the transport header, which can start at byte 511 at
// most.
func (w *twin) extend(p *packet) {
	if p.src.Is6() && w.r.IntN(4) == 0 {
		p.ext, p.extLen = []int{60}, 8*(1+w.r.IntN(57))
	}
}

// answer returns a packet to a client, mostly of a known session.
func (w *twin) answer() packet {
	p := w.request().turned()
	if len(w.order) > 0 && w.r.IntN(10) > 0 {
		f := w.order[w.r.IntN(len(w.order))]
		p = packet{src: f.src, dst: f.dst, proto: f.proto, sport: f.sport, dport: f.dport, payload: []byte("answer")}
	}
	w.extend(&p)
	if p.proto == protoTCP {
		p.flags = []uint8{tcpSYN | tcpACK, tcpACK, tcpACK, tcpACK | tcpFIN, tcpRST}[w.r.IntN(5)]
	}
	return p
}

func (p packet) turned() packet {
	p.src, p.dst, p.sport, p.dport = p.dst, p.src, p.dport, p.sport
	return p
}

// change modifies an instance, or the name of a client, as a control plane can.
func (w *twin) change() {
	if w.r.IntN(4) == 0 {
		client := w.clients[w.r.IntN(2)]
		var n name
		if err := w.maps[mapNames].Lookup(nameKey{addressOf(client), testIfindex}, &n); err != nil {
			w.t.Fatal(err)
		}
		w.setName(client, n.Other.addr(), n.Flags^nameRetired)
		return
	}
	in := w.instances[w.r.IntN(len(w.instances))]
	switch w.r.IntN(4) {
	case 0:
		in.gone = !in.gone
	case 1:
		in.draining = !in.draining
	default:
		in.generation++
		in.addr = w.fresh
		w.fresh = w.fresh.Next()
		w.place(in.index, uint32(in.generation), 0, in.addr.String())
	}
	flags := uint32(0)
	if in.gone {
		flags |= instanceGone
	}
	if in.draining {
		flags |= instanceDraining
	}
	w.setFlags(in.index, flags)
}

// step sends one packet through data plane and model.
func (w *twin) step(i int) {
	w.t.Helper()
	var p, want packet
	var verdict modelVerdict
	var got result
	if w.r.IntN(3) > 0 {
		p = w.request()
		verdict, want = w.model.out(p)
		got = w.kernel.out(p.bytes())
	} else {
		p = w.answer()
		verdict, want = w.model.in(p)
		got = w.kernel.in(p.bytes())
	}
	action := map[modelVerdict]int32{modelPass: tcNext, modelChange: tcNext, modelAnswer: tcRedirect,
		modelDrop: tcShot}[verdict]
	if verdict == modelAnswer && got.action == tcShot {
		return // over the rate limit of answers
	}
	if got.action != action {
		w.t.Fatalf("packet %d %+v: action %d, want %d", i, p, got.action, action)
	}
	if action == tcNext && !bytes.Equal(got.frame, want.bytes()) {
		w.t.Fatalf("packet %d %+v: got\n%x, want\n%x", i, p, got.frame, want.bytes())
	}
}

// compareTables compares sessions, and the counts for policyLeast.
func (w *twin) compareTables() {
	w.t.Helper()
	forward := 0
	for key, s := range w.table() {
		f := modelFlow{int(key.Proto), key.Src.addr(), key.Dst.addr(), key.SPort.number(), key.DPort.number()}
		m := w.forward[f]
		if s.Flags&sessionReverse != 0 {
			if m = w.reverse[f]; m != nil && (s.Addr.addr() != m.key.dst || s.DPort.number() != m.key.sport) {
				w.t.Errorf("%v: %+v", f, s)
			}
		} else {
			forward++
			if m != nil && (s.Addr.addr() != m.addr || s.Instance != m.instance.index ||
				(s.State&stateClosed != 0) != m.closed) {
				w.t.Errorf("%v: %+v, want %+v", f, s, m)
			}
		}
		if m == nil {
			w.t.Errorf("%v is not in the model: %+v", f, s)
		}
	}
	if forward != len(w.forward) {
		w.t.Errorf("%d sessions, want %d", forward, len(w.forward))
	}
	for _, in := range w.instances {
		var stats instanceStats
		if err := w.maps[mapInstanceStats].Lookup(in.index, &stats); err != nil {
			w.t.Fatal(err)
		}
		if int(stats.Sessions) != in.sessions {
			w.t.Errorf("instance %d has %d sessions, want %d", in.index, stats.Sessions, in.sessions)
		}
	}
}

// Random traffic in both directions to services of all policies, while instances are added, removed and moved.
func TestAgainstModel(t *testing.T) {
	notEmulated(t)
	for _, v4 := range []bool{true, false} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("v4=%v/%d", v4, seed), func(t *testing.T) {
				w := newTwin(t, v4, seed)
				for i := range 5000 {
					if w.r.IntN(100) == 0 {
						w.change()
					}
					w.step(i)
				}
				w.compareTables()
			})
		}
	}
}
