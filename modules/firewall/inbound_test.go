// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"net/netip"
	"testing"
)

func TestInbound(t *testing.T) {
	from := netip.MustParseAddr("10.18.0.9")
	for config, admitted := range map[string]bool{
		`{}`:                            false,
		`{"state": {"enabled": false}}`: false,
		`{"defaultPolicy": {"ingress": "allow"}}`:                              false,
		`{"state": {"enabled": false}, "defaultPolicy": {"ingress": "allow"}}`: true,
		`{"mode": "audit"}`: true,
		`{"rules": [{"name": "a", "action": "allow", "direction": "ingress"}]}`:                                         false,
		`{"state": {"enabled": false}, "rules": [{"name": "a", "action": "allow", "direction": "ingress"}]}`:            true,
		`{"state": {"enabled": false}, "rules": [{"name": "a", "action": "allow", "src": "10.18.0.0/16"}]}`:             true,
		`{"state": {"enabled": false}, "rules": [{"name": "a", "action": "allow", "src": "10.18.0.9"}]}`:                true,
		`{"state": {"enabled": false}, "rules": [{"name": "a", "action": "allow", "src": "10.19.0.0/16"}]}`:             false,
		`{"state": {"enabled": false}, "rules": [{"name": "a", "action": "deny", "src": "10.18.0.0/16"}]}`:              false,
		`{"state": {"enabled": false}, "rules": [{"name": "a", "action": "allow", "direction": "egress"}]}`:             false,
		`{"state": {"enabled": false}, "rules": [{"name": "a", "action": "allow", "protocol": "udp"}]}`:                 false,
		`{"state": {"enabled": false}, "rules": [{"name": "a", "action": "allow", "protocol": "any"}]}`:                 true,
		`{"state": {"enabled": false}, "rules": [{"name": "a", "action": "allow", "protocol": "tcp", "dstPort": 80}]}`:  false,
		`{"state": {"enabled": false}, "rules": [{"name": "a", "action": "allow", "protocol": "icmp", "icmpType": 8}]}`: false,
	} {
		in := compileConfig(t, config).Settings().Inbound
		got := false
		for _, p := range in.Sources {
			got = got || p.Contains(from)
		}
		if got != admitted {
			t.Errorf("%s lets in packets from %v: %t", config, from, got)
		}
	}
}
