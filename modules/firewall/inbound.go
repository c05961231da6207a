// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"net/netip"

	"github.com/kerb-edge/kerb/sdk"
)

// inbound describes what the firewall lets in. With connection tracking, a reply from another address than the one that
// was asked belongs to no connection, whatever the rules are.
func (c *config) inbound() *sdk.Inbound {
	in := &sdk.Inbound{Advice: "set state: {enabled: false} and add a rule {action: allow, direction: ingress} with the " +
		"address as src"}
	switch {
	case c.Mode == modeAudit:
		in.Sources = everywhere
		return in
	case c.State.Enabled:
		return in
	case bool(c.DefaultPolicy.Ingress):
		in.Sources = everywhere
		return in
	}
	for _, r := range c.Rules {
		if r.Action != actionAllow || r.Direction == "egress" || !r.anyPacket() {
			continue
		}
		var rule Rule
		src, err := parseAddress(r.Src, &rule, setSrc)
		switch {
		case err != nil || rule.hasSets(): // a set's elements come and go
		case src.IsValid():
			in.Sources = append(in.Sources, src)
		default:
			in.Sources = append(in.Sources, everywhere...)
		}
	}
	return in
}

var everywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}

// anyPacket reports whether a rule is about all packets from its source.
func (r ruleConfig) anyPacket() bool {
	any := len(r.Protocol) == 0 || string(r.Protocol) == `"any"`
	return any && (len(r.Dst) == 0 || string(r.Dst) == `""`) && len(r.SrcPort)+len(r.DstPort) == 0 && r.ICMPType == nil
}
