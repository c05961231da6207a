// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/lab/classbench"
)

// family is a kind of rules, and of packets that the last of them allow.
type family struct {
	name string
	rule func(r *rand.Rand, v4 bool, i int) map[string]any
}

func randomAddr(r *rand.Rand, v4 bool) netip.Addr {
	if v4 {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 10<<24|r.Uint32()&0xffffff)
		return netip.AddrFrom4(a)
	}
	var a [16]byte
	binary.BigEndian.PutUint64(a[:], 0x20010db8_00000000|uint64(r.Uint32()))
	binary.BigEndian.PutUint64(a[8:], r.Uint64())
	return netip.AddrFrom16(a)
}

func randomPrefix(r *rand.Rand, v4 bool) string {
	bits := 16 + r.IntN(13)
	if !v4 {
		bits = 40 + r.IntN(25)
	}
	p, _ := randomAddr(r, v4).Prefix(bits)
	return p.String()
}

func randomRange(r *rand.Rand) string {
	lo := r.IntN(60000)
	return fmt.Sprintf("%d-%d", lo, lo+1+r.IntN(2000))
}

var ruleFamilies = []family{
	{"exact", func(r *rand.Rand, v4 bool, i int) map[string]any {
		return map[string]any{"action": "allow", "protocol": "tcp", "src": randomAddr(r, v4).String(),
			"dst":     randomAddr(r, v4).String(),
			"srcPort": 1024 + r.IntN(60000), "dstPort": 1 + r.IntN(60000)}
	}},
	{"mixture", func(r *rand.Rand, v4 bool, i int) map[string]any {
		rule := map[string]any{"action": "allow", "protocol": "tcp", "dst": randomAddr(r, v4).String(), "dstPort": 443}
		if i%2000 == 7 {
			rule["dst"], rule["dstPort"] = randomPrefix(r, v4), randomRange(r)
		}
		return rule
	}},
	{"prefix", func(r *rand.Rand, v4 bool, i int) map[string]any {
		return map[string]any{"action": "allow", "protocol": "tcp", "src": randomPrefix(r, v4), "dst": randomPrefix(r, v4)}
	}},
	{"range", func(r *rand.Rand, v4 bool, i int) map[string]any {
		return map[string]any{"action": "allow", "protocol": "tcp", "src": randomPrefix(r, v4), "srcPort": randomRange(r),
			"dstPort": randomRange(r)}
	}},
	{"portrange", func(r *rand.Rand, v4 bool, i int) map[string]any {
		return map[string]any{"action": "allow", "protocol": "tcp", "dst": randomPrefix(r, v4), "dstPort": randomRange(r)}
	}},
}

func (f family) config(n int, v4, state bool) map[string]any {
	r := rand.New(rand.NewPCG(7, 7))
	rules := make([]any, n)
	for i := range rules {
		rules[i] = f.rule(r, v4, i)
	}
	return map[string]any{"rules": rules, "state": map[string]any{"enabled": state}, "antiSpoof": false,
		"defaultPolicy": map[string]any{"ingress": "deny", "egress": "deny"}}
}

// inside returns a packet that a rule matches.
func inside(rule *Rule) Packet {
	p := Packet{Proto: protoTCP, TCPFlags: tcpACK, SrcPort: rule.SrcPort.Lo, DstPort: rule.DstPort.Hi, HopLimit: 64}
	if rule.Proto == protoUDP {
		p.Proto, p.TCPFlags = protoUDP, 0
	}
	p.Src, p.Dst = rule.Src.Addr(), rule.Dst.Addr()
	if !p.Src.IsValid() {
		p.Src = p.Dst
	}
	if !p.Src.IsValid() {
		p.Src = netip.MustParseAddr("192.0.2.1")
	}
	if !p.Dst.IsValid() {
		p.Dst = p.Src
	}
	return p
}

const benchRepeat = 100_000

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

// BenchmarkRules measures packets of a hot flow without state: one that matches the last rule, and one that no rule
// matches.
func BenchmarkRules(b *testing.B) {
	for _, v4 := range []bool{true, false} {
		for _, f := range ruleFamilies {
			for _, n := range []int{1, 100, 10000} {
				k := loadFirewall(b, f.config(n, v4, false))
				name := fmt.Sprintf("%s/ip%d/%d", f.name, map[bool]int{true: 4, false: 6}[v4], n)
				b.Run(name+"/hit", func(b *testing.B) { measure(b, k.egress, frame{Packet: inside(&k.rules[n-1])}.bytes()) })
				p := inside(&k.rules[n-1])
				p.DstPort, p.Proto = 65535, protoUDP
				if n == 1 {
					arp := make([]byte, 60)
					arp[12], arp[13] = 8, 6
					b.Run(name+"/arp", func(b *testing.B) { measure(b, k.egress, arp) })
				}
				b.Run(name+"/miss", func(b *testing.B) { measure(b, k.egress, frame{Packet: p}.bytes()) })
			}
		}
	}
}

// BenchmarkRuleSets measures packets of one flow without state, by the position of the matching rule.
func BenchmarkRuleSets(b *testing.B) {
	for _, v4 := range []bool{true, false} {
		for _, kind := range classbench.Kinds {
			for _, n := range []int{1000, MaxRules} {
				k := loadFirewall(b, benchConfig(b, kind, n, v4))
				for _, i := range []int{n / 10, n / 2, n - 1} {
					p := inside(&k.rules[i])
					b.Run(fmt.Sprintf("%s/ip%d/%d/rule%d", kind, map[bool]int{true: 4, false: 6}[v4], n, i), func(b *testing.B) {
						measure(b, k.egress, frame{Packet: p}.bytes())
					})
				}
			}
		}
	}
}

// BenchmarkState measures packets of an established connection, and of a one-way flow.
func BenchmarkState(b *testing.B) {
	for _, v4 := range []bool{true, false} {
		f := ruleFamilies[1]
		k := loadFirewall(b, f.config(10000, v4, true))
		out := inside(&k.rules[9999])
		flow := newTCPFlow(out.Src.String(), out.SrcPort, out.Dst.String(), out.DstPort)
		name := fmt.Sprintf("ip%d", map[bool]int{true: 4, false: 6}[v4])
		b.Run(name+"/one-way", func(b *testing.B) {
			measure(b, k.egress, newTCPFlow(out.Src.String(), 1, out.Dst.String(), 1).out(tcpSYN, 0).bytes())
		})
		if !k.establish(flow, 0) {
			b.Fatal("no handshake")
		}
		b.Run(name+"/established", func(b *testing.B) { measure(b, k.egress, flow.out(tcpACK, 0).bytes()) })
	}
}

// BenchmarkCompile measures the compilation of a config to the contents of maps.
func BenchmarkCompile(b *testing.B) {
	for _, f := range ruleFamilies {
		b.Run(f.name, func(b *testing.B) { measureCompile(b, f.config(MaxRules, true, true)) })
	}
	for _, kind := range classbench.Kinds {
		b.Run(kind, func(b *testing.B) { measureCompile(b, benchConfig(b, kind, MaxRules, true)) })
	}
}

func measureCompile(b *testing.B, config map[string]any) {
	var last *Firewall
	for range b.N {
		last = compileConfig(b, config)
	}
	steps, forks := last.tree.cost(last.tree.behindHash(last.roots["root_egress4"]))
	b.ReportMetric(float64(len(last.tree.chunks)), "pages")
	b.ReportMetric(float64(steps), "steps")
	b.ReportMetric(float64(forks), "forks")
}
