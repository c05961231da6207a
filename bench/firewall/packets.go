// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/kerb-edge/kerb/bench/internal/inject"
	"github.com/kerb-edge/kerb/internal/lab/classbench"
	frames "github.com/kerb-edge/kerb/internal/packet"
)

// packet has the fields that rules match.
type packet struct {
	source, destination netip.Addr
	protocol            int
	sourcePort, port    uint16
}

func (p *packet) matches(r *Rule) bool {
	return (!r.Src.IsValid() || r.Src.Contains(p.source)) && (!r.Dst.IsValid() || r.Dst.Contains(p.destination)) &&
		(r.Protocol == classbench.Any || r.Protocol == p.protocol) &&
		r.SrcPort.Low <= p.sourcePort && p.sourcePort <= r.SrcPort.High &&
		r.DstPort.Low <= p.port && p.port <= r.DstPort.High
}

// decider returns a function that returns the first matching rule for a packet, or nil. Rules with a single source
// address are indexed by it.
func decider(rules []Rule) func(*packet) *Rule {
	bySource, rest := map[netip.Addr][]int{}, []int(nil)
	for i := range rules {
		if src := rules[i].Src; src.IsSingleIP() {
			bySource[src.Addr()] = append(bySource[src.Addr()], i)
		} else {
			rest = append(rest, i)
		}
	}
	return func(p *packet) *Rule {
		first := len(rules)
		for _, some := range [][]int{bySource[p.source], rest} {
			for _, i := range some {
				if i < first && p.matches(&rules[i]) {
					first = i
				}
			}
		}
		if first == len(rules) {
			return nil
		}
		return &rules[first]
	}
}

// headers returns the packet's headers, for a frame of minimum size.
func (p *packet) headers() inject.Headers {
	f := frames.Fields{Src: p.source, Dst: p.destination}
	ports := frames.Ports{Src: p.sourcePort, Dst: p.port}
	if p.protocol == classbench.UDP {
		f.UDP, f.Payload = &ports, string(make([]byte, 18))
	} else {
		f.TCP, f.Payload = &frames.TCP{Ports: ports, Flags: "A"}, string(make([]byte, 6))
	}
	return inject.HeadersOf(f)
}

// packets are sent in rotation.
type packets struct {
	headers []inject.Headers
	denied  bool // no rule allows them; all others are allowed
}

// packetsOf returns packets for rules, in random order: for uniform one per rule that allows and is not shadowed, for
// miss as many that match no rule, for denied some that do not pass, for hot nil.
func packetsOf(kind string, rules []Rule) (*packets, error) {
	if kind == "hot" {
		return nil, nil
	}
	random := rand.New(rand.NewPCG(seed, uint64(len(rules))))
	anywhere := Rule{Protocol: classbench.UDP, SrcPort: classbench.AnyPort, DstPort: classbench.AnyPort}
	firstOf, out := decider(rules), &packets{denied: kind != "uniform"}
	for _, i := range random.Perm(len(rules)) {
		from := &rules[i]
		if kind == "miss" || kind == "denied" && from.Allow {
			from = &anywhere
		}
		p := inside(random, from)
		first := firstOf(&p)
		if allowed := first != nil && first.Allow; allowed != out.denied && (kind != "miss" || first == nil) {
			out.headers = append(out.headers, p.headers())
		}
	}
	if len(out.headers) == 0 || len(out.headers) > inject.MaxPackets {
		return nil, fmt.Errorf("%d rules yield %d %s packets, not 1 to %d", len(rules), len(out.headers), kind,
			inject.MaxPackets)
	}
	return out, nil
}

// inside returns a random packet that the rule matches, with host addresses.
func inside(r *rand.Rand, rule *Rule) packet {
	p := packet{addressIn(r, rule.Src), addressIn(r, rule.Dst), rule.Protocol, portIn(r, rule.SrcPort),
		portIn(r, rule.DstPort)}
	if p.protocol == classbench.Any {
		p.protocol = []int{classbench.TCP, classbench.UDP}[r.IntN(2)]
	}
	return p
}

func portIn(r *rand.Rand, p classbench.Ports) uint16 {
	return p.Low + uint16(r.IntN(int(p.High-p.Low)+1))
}

func addressIn(r *rand.Rand, p netip.Prefix) netip.Addr {
	if !p.IsValid() {
		p = netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(16 + r.IntN(200))}), 8)
	}
	word := binary.BigEndian.Uint32(p.Addr().AsSlice())
	if p.Bits() < 32 {
		word |= r.Uint32N(1 << (32 - p.Bits()))
	}
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, word)))
}
