// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// The data plane hands outer packets to a neighbour, and takes them before the stack sees them: the kernel evaluates no
// IPsec policy for them, nor for the inner packets. So the tunnel refuses nodes whose packets a policy covers.

// Bits of node.Refuse (TUN_REFUSE_*).
const (
	refuseOut = 1 << 0
	refuseIn  = 1 << 1
)

// traffic is a set of packets that a policy is compared with.
type traffic struct {
	src, dst netip.Prefix
	proto    uint8 // 0: any, with any ports
	sport    [2]uint16
	dport    uint16
	ifindex  uint32 // 0: not known
}

// meets reports whether a policy covers some of the packets, and whether it covers all of them.
func (f traffic) meets(p sdk.IPsecPolicy) (some, all bool) {
	some, all = true, true
	if p.Source.IsValid() {
		some = p.Source.Overlaps(f.src) && p.Destination.Overlaps(f.dst)
		all = within(f.src, p.Source) && within(f.dst, p.Destination)
	}
	if p.Protocol != 0 && p.Protocol != f.proto {
		some, all = some && f.proto == 0, false
	}
	if p.Ifindex != 0 && p.Ifindex != f.ifindex {
		some, all = some && f.ifindex == 0, false
	}
	if f.proto == 0 {
		return some, all && p.SourcePort.Mask == 0 && p.DestinationPort.Mask == 0
	}
	any, every := f.sports(p.SourcePort)
	hit := p.DestinationPort.Matches(f.dport)
	return some && any && hit, all && every && hit
}

func within(inner, outer netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

func (f traffic) sports(m sdk.PortMask) (any, every bool) {
	every = true
	for port := int(f.sport[0]); port <= int(f.sport[1]); port++ {
		hit := m.Matches(uint16(port))
		any, every = any || hit, every && hit
		if any && (m.Mask == 0 || !every) {
			break
		}
	}
	return
}

// covering finds the policy because of which the kernel would not let all of the packets pass unprotected.
func covering(policies []sdk.IPsecPolicy, direction string, f traffic) (sdk.IPsecPolicy, bool) {
	for _, p := range policies {
		if p.Direction != direction {
			continue
		}
		some, all := f.meets(p)
		if some && p.Action != sdk.IPsecAllow {
			return p, true
		}
		if all {
			return p, false
		}
	}
	return sdk.IPsecPolicy{}, false
}

func host(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }

// Source ports of outer packets (TUN_PORT_FIRST).
const portFirst, portLast = 49152, 65535

// refusal reports which packets of a node must not pass, and why. inner are addresses of its services, ours those of
// this node's.
func (c *config) refusal(n node, ipsec *sdk.IPsec, inner, ours []netip.Prefix) (refuse uint32, why string) {
	switch {
	case c.Mode == modeDevice || n.Ifindex == 0: // the device's packets pass through the stack
		return 0, ""
	case ipsec == nil:
		return refuseOut | refuseIn, "the IPsec policies of this node are not known yet"
	case ipsec.Error != "":
		return refuseOut | refuseIn, ipsec.Error
	}
	outer := traffic{src: host(n.Local.addr()), dst: host(n.Addr.addr()), proto: unix.IPPROTO_UDP,
		sport: [2]uint16{portFirst, portLast}, dport: c.portOf(n), ifindex: n.Ifindex}
	if p, found := covering(ipsec.Policies, sdk.IPsecOut, outer); found {
		refuse, why = refuse|refuseOut, fmt.Sprintf("policy %s covers packets to it", p)
	}
	outer.src, outer.dst, outer.dport = outer.dst, outer.src, c.Port
	if p, found := covering(ipsec.Policies, sdk.IPsecIn, outer); found {
		refuse, why = refuse|refuseIn, fmt.Sprintf("policy %s covers packets from it", p)
	}
	for _, theirs := range inner {
		for _, own := range ours {
			if p, found := covering(ipsec.Policies, sdk.IPsecOut, traffic{src: own, dst: theirs}); found {
				refuse, why = refuse|refuseOut, fmt.Sprintf("policy %s covers packets of services to it", p)
			}
			if p, found := covering(ipsec.Policies, sdk.IPsecForward, traffic{src: theirs, dst: own}); found {
				refuse, why = refuse|refuseIn, fmt.Sprintf("policy %s covers packets of its services", p)
			}
		}
	}
	return
}

// innerOf are the addresses that a node's services have.
func (t *tunnel) innerOf(addr netip.Addr) (out []netip.Prefix) {
	for _, p := range t.config.peers {
		if p.addr == addr {
			out = append(out, p.subnets...)
		}
	}
	for _, list := range t.virtual {
		for _, r := range list {
			if r.node == addr {
				out = append(out, host(r.addr))
			}
		}
	}
	return
}

// localsOf are the addresses of this node's services.
func localsOf(hosts map[address]end) (out []netip.Prefix) {
	for a, e := range hosts {
		if e.Node == 0 {
			out = append(out, host(a.addr()))
		}
	}
	return
}

// setRefused notes why nodes are refused, and logs what is new.
func (t *tunnel) setRefused(module string, now map[netip.Addr]string) {
	for _, addr := range slices.SortedFunc(maps.Keys(now), netip.Addr.Compare) {
		if t.refused[addr] != now[addr] {
			slog.Warn("tunnel: node refused", "module", module, "node", addr, "reason", now[addr])
		}
	}
	for addr := range t.refused {
		if now[addr] == "" {
			slog.Info("tunnel: node is no longer refused", "module", module, "node", addr)
		}
	}
	t.refused = now
}

// maxNamed is how many nodes a condition names.
const maxNamed = 5

// Conditions implements sdk.Conditioner: Encrypted is there while nodes are refused.
func (t *tunnel) Conditions() ([]sdk.Condition, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.refused) == 0 {
		return nil, nil
	}
	var texts []string
	for i, addr := range slices.SortedFunc(maps.Keys(t.refused), netip.Addr.Compare) {
		if i == maxNamed {
			texts = append(texts, fmt.Sprintf("and %d more", len(t.refused)-maxNamed))
			break
		}
		texts = append(texts, fmt.Sprintf("node %s: %s", addr, t.refused[addr]))
	}
	return []sdk.Condition{{Type: "Encrypted", Status: "False", Reason: "IPsecPolicy",
		Message: "packets are dropped, since this module bypasses IPsec: " + strings.Join(texts, "; ") +
			". Use an XFRM or WireGuard interface as underlay, or mode device; or exempt the tunnel's packets by a policy " +
			"with action allow"}}, nil
}
