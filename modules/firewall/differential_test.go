// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/classbench"
	"github.com/kerb-edge/kerb/internal/seed"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// The data plane and the Go model must make the same decision for each packet, with and without state, and increment
// the same counters. FIREWALL_SECONDS sets the duration (10 by default).
func TestAgainstModel(t *testing.T) {
	notEmulated(t)
	sdktest.NeedRoot(t)
	first := seed.Of(t)
	seconds := 10
	if s, err := strconv.Atoi(os.Getenv("FIREWALL_SECONDS")); err == nil {
		seconds = s
	}
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	sets, packets := 0, 0
	for round := uint64(0); round == 0 || time.Now().Before(end); round++ {
		name := fmt.Sprint(first + round)
		ok := t.Run(name, func(t *testing.T) {
			packets += compare(t, rand.New(rand.NewPCG(first+round, 1)))
		})
		if !ok {
			t.Fatalf("repeat with %s=%s", seed.Variable, name)
		}
		sets++
	}
	t.Logf("%d rule sets, %d packets", sets, packets)
}

// compare runs one random rule set. Sometimes it marks its connections as those of an earlier rule set, so that they
// are checked again.
func compare(t *testing.T, r *rand.Rand) int {
	g := generator{r, 1 + r.IntN(3)}
	fw := compileConfig(t, g.config())
	const hour = duration(time.Hour)
	fw.config.State.assured = pick(&g, 0, hour)
	// the machine may be slow, the model's clock is
	fw.config.State.Timeouts = timeouts{hour, hour, hour, hour, hour, hour, hour}
	k := loadCompiled(t, fw, map[string]any{"answer_time": ^uint32(0)})
	model := NewModel(k.Firewall)
	sets := newRandomSets(t, &g, k, model)
	const n = 3000
	var p Packet
	for i := range n {
		if r.IntN(200) == 0 {
			k.outdate(model)
		}
		if r.IntN(100) == 0 {
			sets.change(t, model)
		}
		p = g.packet(model, p)
		p.Ifindex = 1 // loopback, the interface of test runs
		p.Len = r.IntN(40)
		if p.tcp(tcpRST) && r.IntN(2) == 0 {
			p.Len = 0 // as an answer
		}
		f := frame{Packet: p, vlans: r.IntN(3), payload: p.Len}
		if p.Src.Is4() && r.IntN(4) == 0 {
			f.options = 4 * r.IntN(10)
		}
		if p.Src.Is6() && r.IntN(4) == 0 {
			f.ext = [][]int{{0}, {60}, {43, 60}, {0, 43, 60}}[r.IntN(4)]
			room := maxHeaders - 54 - 4*f.vlans - 8*(len(f.ext)-1)
			if p.Scale != 0 {
				room -= 28 // TCP options follow the header
			}
			f.extLen = 8 * r.IntN(1+room/8)
		}
		model.headers = headers{f.options, f.ext, f.extLen}
		want := model.Decide(&p, time.Duration(i))
		before := k.hits(want.Slot)
		k.refillAnswers()
		got, _ := k.run(f.bytes(), p.Ingress)
		action := int32(tcShot)
		switch {
		case want.Allow || k.config.Mode == modeAudit:
			action = tcNext
		case model.rejects(want) && f.answerable():
			action = tcRedirect
			model.expectAnswer(&p)
		}
		if got != action || k.hits(want.Slot) != before+1 {
			rule := "none"
			if want.Rule >= 0 {
				rule = k.rules[want.Rule].String()
			}
			t.Fatalf("packet %d %+v:\nkernel's action %d, model's %d by rule %d (%s), slot %d hit %t\ndecided without rule: "+
				"%v\nmodel's entry %+v",
				i, p, got, action, want.Rule, rule, want.Slot, k.hits(want.Slot) == before+1, k.other(), model.conns[p.key()])
		}
		k.checkReports(&p, want, model)
	}
	return n
}

// checkReports compares the reports about a packet with the model.
func (k *kernel) checkReports(p *Packet, want Decision, m *Model) {
	k.t.Helper()
	all := k.reported()
	if !m.reports() {
		if len(all) != 0 {
			k.t.Fatalf("%+v: reported %+v, want nothing", p, all)
		}
		return
	}
	if len(all) != 1 {
		k.t.Fatalf("%+v: %d reports by rule %d, want one", p, len(all), m.matched)
	}
	e := all[0]
	src, dst := e.addresses()
	if e.Slot != k.slotOf(m.matched) || e.Decision&0xffff != want.Slot || (e.Decision>>16 == 0) != want.Allow ||
		(e.Dir == 1) != p.Ingress || src != p.Src || dst != p.Dst || int(e.Word[8]) != p.Proto ||
		p.Proto == protoTCP && e.TCP != p.TCPFlags || p.Proto == protoUDP && e.Word[10] != uint32(p.DstPort) {
		k.t.Fatalf("%+v: reported %+v by rule %d, decision %+v", p, e, m.matched, want)
	}
}

// maxHeaders is how far into the frame the transport header may start (KERB_MAX_HDRS).
const maxHeaders = 511

// generator generates rules and packets from few values, so that they match.
type generator struct {
	*rand.Rand
	spread int
}

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

func (g *generator) config() map[string]any {
	n := pick(g, 0, 1, 3, 10, 30, 100, 300)
	rules := make([]any, n)
	for i := range rules {
		rules[i] = g.rule(i)
	}
	return map[string]any{
		"mode":          pick(g, modeEnforce, modeEnforce, modeEnforce, modeAudit),
		"rules":         rules,
		"defaultPolicy": map[string]any{"ingress": pick(g, "allow", "deny"), "egress": pick(g, "allow", "deny")},
		"state":         map[string]any{"enabled": g.IntN(4) > 0, "pickup": pick(g, "0s", "1h")},
		"linkControl":   pick(g, "allow", "rules"),
		"antiSpoof":     false, // TestAntiSpoof
	}
}

func (g *generator) rule(i int) map[string]any {
	rule := map[string]any{"action": pick(g, actionAllow, actionAllow, actionDeny, actionReject),
		"direction": pick(g, "ingress", "egress", "both")}
	if g.IntN(2) == 0 {
		rule["name"] = fmt.Sprint("rule ", i)
	}
	if rule["action"] != actionDeny && g.IntN(4) == 0 {
		rule["limit"] = map[string]any{"rate": "1/h", "burst": 1 + g.IntN(20)}
	}
	if g.IntN(4) == 0 {
		rule["log"] = map[string]any{"rate": "1/h", "burst": 1 + g.IntN(20)}
	}
	proto := pick[any](g, "tcp", "tcp", "udp", "udp", "icmp", "icmpv6", "any", 47, 132)
	rule["protocol"] = proto
	v4 := proto == "icmp" || proto != "icmpv6" && g.IntN(2) == 0
	if g.IntN(3) > 0 {
		rule["src"] = g.prefix(v4)
	}
	if g.IntN(3) > 0 {
		rule["dst"] = g.prefix(v4)
	}
	g.addSets(rule)
	switch proto {
	case "tcp", "udp":
		if g.IntN(3) == 0 {
			rule["srcPort"] = g.ports()
		}
		if g.IntN(3) > 0 {
			rule["dstPort"] = g.ports()
		}
	case "icmp", "icmpv6":
		if g.IntN(2) == 0 {
			rule["icmpType"] = int(g.icmpType())
		}
	}
	return rule
}

func (g *generator) ports() any {
	a := g.port()
	if g.IntN(2) == 0 {
		return a
	}
	return fmt.Sprintf("%d-%d", a, min(65535, int(a)+g.IntN(1<<(4*g.spread))))
}

func (g *generator) port() uint16 {
	return pick(g, 0, 80, 443, 65535, uint16(1000+g.IntN(1<<(3*g.spread))))
}

func (g *generator) icmpType() uint8 {
	return pick[uint8](g, 0, 3, 8, 11, 1, 2, 128, 129, 133, 135, 143, uint8(g.IntN(256)))
}

// address returns one of few addresses, which differ in bits of different words.
func (g *generator) address(v4 bool) netip.Addr {
	x := g.IntN(1 << (2 * g.spread))
	if v4 {
		return netip.AddrFrom4([4]byte{10, byte(x >> 2), byte(g.IntN(2)), byte(x)})
	}
	a := [16]byte{0: 0x20, 1: 0x01}
	if g.IntN(5) == 0 {
		a[0], a[1] = 0xfe, 0x80
	}
	a[5], a[8], a[15] = byte(x>>1), byte(g.IntN(2)), byte(x)
	return netip.AddrFrom16(a)
}

func (g *generator) prefix(v4 bool) string {
	a := g.address(v4)
	bits := pick(g, a.BitLen(), a.BitLen(), g.IntN(a.BitLen()+1), a.BitLen()-g.IntN(9))
	p, _ := a.Prefix(bits)
	return p.String()
}

// packet returns a random packet, or one that belongs to a connection of the model or to the previous packet.
func (g *generator) packet(m *Model, last Packet) Packet {
	if last.Src.IsValid() && g.IntN(8) == 0 {
		return g.answer(last)
	}
	if len(m.conns) > 0 && g.IntN(2) == 0 {
		return g.continued(m)
	}
	v4 := g.IntN(2) == 0
	p := Packet{Ingress: g.IntN(2) == 0, Src: g.address(v4), Dst: g.address(v4), HopLimit: pick[uint8](g, 64, 255, 1)}
	p.Proto = pick(g, protoTCP, protoTCP, protoUDP, protoUDP, protoICMP, protoICMPv6, 47, 132)
	g.fill(&p)
	return p
}

func (g *generator) fill(p *Packet) {
	switch {
	case p.Proto == protoTCP:
		p.SrcPort, p.DstPort, p.TCPFlags = g.port(), g.port(), g.flags()
		g.window(p)
	case p.Proto == protoUDP:
		p.SrcPort, p.DstPort = g.port(), g.port()
	case p.isICMP():
		p.ICMPType, p.ICMPID, p.ICMPCode = g.icmpType(), uint16(g.IntN(4)), uint8(g.IntN(2))
	}
}

func (g *generator) flags() uint8 {
	return pick[uint8](g, tcpSYN, tcpSYN, tcpSYN|tcpACK, tcpSYN|tcpACK, tcpACK, tcpACK, tcpACK|tcpPSH, tcpFIN|tcpACK,
		tcpRST, tcpRST|tcpACK, uint8(g.IntN(64)))
}

// window sets sequence numbers from a small range close to wrap-around.
func (g *generator) window(p *Packet) {
	p.Seq, p.Ack, p.Win = -uint32(g.IntN(1<<12)), -uint32(g.IntN(1<<12)), pick[uint16](g, 0, 1, 300, 65535)
	if p.TCPFlags&tcpSYN != 0 && g.IntN(2) == 0 {
		p.Scale = uint8(g.IntN(17))
	}
}

// segment sets sequence numbers at the edges of the windows of a connection, or flags that continue it.
func (g *generator) segment(p *Packet, c *connState) {
	s, r := c.peers(p)
	if g.IntN(2) == 0 {
		p.TCPFlags = []uint8{tcpSYN | tcpACK, tcpACK, tcpACK, tcpACK, tcpSYN}[min(4, c.phase)]
	}
	if g.IntN(4) > 0 {
		p.Seq = pick(g, s.end, s.end, s.end, s.end, r.acked, s.maxEnd, s.end-r.maxWin) + pick[uint32](g, 0, 0, 0, 0, 1,
			^uint32(0), uint32(g.IntN(100)))
		p.Ack = pick(g, r.end, r.end, r.end, r.end, s.acked, r.maxEnd, r.end-s.maxWin, r.end-lag) +
			pick[uint32](g, 0, 0, 0, 0, 1, ^uint32(0))
	}
}

// continued returns a packet of a connection, or an ICMP error about it.
func (g *generator) continued(m *Model) Packet {
	keys := make([]connKey, 0, len(m.conns))
	for k := range m.conns {
		keys = append(keys, k)
	}
	best := keys[0] // maps are unordered: the smallest text makes a seed reproducible
	want := g.Uint64()
	for _, k := range keys {
		if distance(k, want) < distance(best, want) {
			best = k
		}
	}
	p := Packet{Src: best.local, Dst: best.remote, Proto: best.proto, SrcPort: best.localPort, DstPort: best.remotePort,
		HopLimit: 64}
	switch {
	case best.kind != kindPlain:
		p.SrcPort, p.ICMPID = 0, best.localPort
		v4 := p.Src.Is4()
		p.ICMPType = map[bool]uint8{true: 8, false: 128}[v4]
		if best.kind == kindEchoRemote {
			p.ICMPType = map[bool]uint8{true: 0, false: 129}[v4]
		}
	case p.Proto == protoTCP:
		p.TCPFlags = g.flags()
		g.window(&p)
	}
	if g.IntN(2) == 0 {
		p.Ingress = true
		p.Src, p.Dst, p.SrcPort, p.DstPort = p.Dst, p.Src, p.DstPort, p.SrcPort
		if best.kind != kindPlain {
			p.ICMPType = map[uint8]uint8{8: 0, 0: 8, 128: 129, 129: 128}[p.ICMPType]
		}
	}
	if c := m.conns[best]; p.Proto == protoTCP && c != nil {
		if alt := m.alongside[best]; alt != nil && g.IntN(2) == 0 {
			c = alt
		}
		g.segment(&p, c)
	}
	if g.IntN(6) == 0 {
		return g.errorAbout(p)
	}
	return p
}

// answer returns the answer to a rejected packet.
func (g *generator) answer(p Packet) Packet {
	if p.Proto != protoTCP || p.Quoted != nil {
		return g.errorAbout(p)
	}
	p.Ingress, p.Src, p.Dst, p.SrcPort, p.DstPort = !p.Ingress, p.Dst, p.Src, p.DstPort, p.SrcPort
	p.TCPFlags, p.Seq, p.Ack, p.Scale, p.Quoted = tcpRST|tcpACK, 0, p.end(), 0, nil
	return p
}

func (g *generator) errorAbout(p Packet) Packet {
	quoted := p
	e := Packet{Ingress: !p.Ingress, Src: p.Dst, Dst: p.Src, Proto: protoICMP, ICMPType: pick[uint8](g, 3, 11, 12),
		HopLimit: 64, Quoted: &quoted}
	if p.Src.Is6() {
		e.Proto, e.ICMPType = protoICMPv6, pick[uint8](g, 1, 2, 3, 4)
	}
	if g.IntN(2) == 0 {
		e.ICMPCode = map[bool]uint8{true: 13, false: 1}[p.Src.Is4()] // prohibited
	}
	if g.IntN(3) == 0 {
		e.Dst = g.address(p.Src.Is4()) // forged
	}
	return e
}

func distance(k connKey, want uint64) uint64 {
	var h uint64 = 14695981039346656037
	for _, b := range binary.BigEndian.AppendUint64([]byte(fmt.Sprint(k)), want) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}

// The largest rule sets, typical and adversarial, in both families at once.
func TestTenThousandRules(t *testing.T) {
	notEmulated(t)
	sdktest.NeedRoot(t) // before the rules are written
	for _, f := range ruleFamilies {
		t.Run(f.name, func(t *testing.T) {
			checkLarge(t, f.config(MaxRules/2, true, false), f.config(MaxRules/2, false, false))
		})
	}
	for _, kind := range classbench.Kinds {
		t.Run(kind, func(t *testing.T) {
			checkLarge(t, benchConfig(t, kind, MaxRules/2, true), benchConfig(t, kind, MaxRules/2, false))
		})
	}
}

// checkLarge compares the data plane with a linear search in the rules of both configs.
func checkLarge(t *testing.T, config, more map[string]any) {
	config["rules"] = append(config["rules"].([]any), more["rules"].([]any)...)
	for i, rule := range config["rules"].([]any) {
		if i%3 == 0 {
			rule.(map[string]any)["action"] = "deny"
		}
	}
	k := loadFirewall(t, config)
	r := rand.New(rand.NewPCG(5, 5))
	for range 2000 {
		p := inside(&k.rules[r.IntN(MaxRules)])
		switch r.IntN(4) {
		case 0:
			p.DstPort += uint16(r.IntN(3)) - 1
		case 1:
			p.Src = randomAddr(r, p.Src.Is4())
		case 2:
			p.SrcPort = uint16(r.Uint32())
		}
		want := k.byRules(&p, nil)
		before := k.hits(want.Slot)
		if got := k.pass(frame{Packet: p}.bytes(), false); got != want.Allow || k.hits(want.Slot) != before+1 {
			t.Fatalf("%+v: passes %t, want %+v", p, got, want)
		}
	}
}
