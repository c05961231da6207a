// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"math"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

const benchRepeat = 10_000

// measure reports the fastest of b.N rounds, since other load only slows rounds down.
func measure(b *testing.B, p *ebpf.Program, frame []byte) {
	b.Helper()
	best := time.Duration(math.MaxInt64)
	for range b.N {
		opts := &ebpf.RunOptions{Data: frame, Repeat: benchRepeat}
		start := time.Now()
		if _, err := p.Run(opts); err != nil {
			b.Fatal(err)
		}
		best = min(best, time.Since(start))
	}
	b.ReportMetric(float64(best.Nanoseconds())/benchRepeat, "ns/packet")
	b.ReportMetric(0, "ns/op")
}

// swing creates sessions between which a packet alternates, since PROG_TEST_RUN passes the modified packet to the next
// round.
func swing(k *kernel, p packet, other string, flags uint8) {
	there := flow{Src: addressOf(p.src), Dst: addressOf(p.dst), SPort: portOf(p.sport), DPort: portOf(p.dport),
		Ifindex: testIfindex, Proto: uint8(p.proto)}
	back := there
	back.Dst = addressOf(addr(other))
	if flags&sessionReverse != 0 {
		back = there
		back.Src = addressOf(addr(other))
	}
	in := k.addInstance(0, other)
	for _, f := range []flow{there, back} {
		to := back.Dst
		if flags&sessionReverse != 0 {
			to = back.Src
			if f == back {
				to = there.Src
			}
		} else if f == back {
			to = there.Dst
		}
		s := session{Addr: to, SPort: f.SPort, DPort: f.DPort, Instance: in, Generation: 2, Other: testIfindex, Local: 1,
			Flags: flags | sessionFar, State: stateAnswered}
		k.put(mapSessions, f, s)
	}
}

func BenchmarkSession(b *testing.B) {
	k := loadProxy(b, nil)
	k.addLocal(testIfindex, [6]byte{2, 0, 0, 0, 0, 9}, localPeer)
	for _, c := range []struct {
		name   string
		packet packet
		other  string
		flags  uint8
	}{
		{"tcp4/forward", tcp("10.18.0.2", 40000, "10.30.0.2", 80, tcpACK), "10.18.0.3", 0},
		{"tcp4/reverse", tcp("10.18.0.3", 80, "10.18.0.2", 40000, tcpACK), "10.30.0.2", sessionReverse},
		{"udp4/forward", udp("10.18.0.2", 40000, "10.30.0.2", 80), "10.18.0.3", 0},
		{"tcp6/forward", tcp("fd00::2", 40000, "fdff:2000::2", 80, tcpACK), "fd00::3", 0},
		{"tcp6/reverse", tcp("fd00::3", 80, "fd00::2", 40000, tcpACK), "fdff:2000::2", sessionReverse},
		{"udp6/forward", udp("fd00::2", 40000, "fdff:2000::2", 80), "fd00::3", 0},
	} {
		b.Run(c.name, func(b *testing.B) {
			swing(k, c.packet, c.other, c.flags)
			measure(b, k.egress, c.packet.bytes())
		})
	}
	b.Run("none", func(b *testing.B) { measure(b, k.egress, udp("10.18.0.2", 40000, "10.18.0.9", 80).bytes()) })
	arp := make([]byte, 60)
	arp[12], arp[13] = 8, 6
	b.Run("arp", func(b *testing.B) { measure(b, k.egress, arp) })
}
