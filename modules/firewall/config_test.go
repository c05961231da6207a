// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk"
)

func TestErrorsNameRuleAndField(t *testing.T) {
	for _, c := range []struct{ rule, field, reason string }{
		{`{"action": "allow", "dstPort": 80}`, "rules[1].dstPort", "no ports"},
		{`{"action": "allow", "protocol": "tcp", "dstPort": "90-80"}`, "rules[1].dstPort", "80-90"},
		{`{"action": "allow", "protocol": "tcp", "dstPort": "65536"}`, "rules[1].dstPort", "0 to 65535"},
		{`{"action": "allow", "protocol": "tcp", "srcPort": "http"}`, "rules[1].srcPort", "1000-2000"},
		{`{"action": "allow", "src": "10.0.0.1/8"}`, "rules[1].src", "10.0.0.0/8"},
		{`{"action": "allow", "src": "web"}`, "rules[1].src", "neither an IP address"},
		{`{"action": "allow", "src": "::ffff:1.2.3.4"}`, "rules[1].src", "IPv4"},
		{`{"action": "allow", "src": "10.0.0.0/8", "dst": "::/0"}`, "rules[1].dst", "different IP versions"},
		{`{"action": "allow", "protocol": "icmp", "dst": "::/0"}`, "rules[1].dst", "icmpv6"},
		{`{"action": "allow", "protocol": "icmpv6", "src": "10.0.0.0/8"}`, "rules[1].src", "use icmp"},
		{`{"action": "allow", "protocol": 256}`, "rules[1].protocol", "0 to 255"},
		{`{"action": "allow", "protocol": "tpc"}`, "rules[1].protocol", "neither tcp"},
		{`{"action": "allow", "protocol": "tcp", "icmpType": 8}`, "rules[1].icmpType", "use icmp"},
		{`{"action": "allow", "direction": "out"}`, "rules[1].direction", "ingress, egress, both"},
		{`{"action": "allow", "name": "first"}`, "rules[1].name", "unique"},
	} {
		_, err := Control().Compile(json.RawMessage(`{"rules": [{"action": "deny", "name": "first"}, ` + c.rule + `]}`))
		var wrong *sdk.ConfigError
		if !errors.As(err, &wrong) || wrong.Field != c.field || !strings.Contains(wrong.Reason, c.reason) {
			t.Errorf("%s: %v, want %s: ... %s", c.rule, err, c.field, c.reason)
		}
	}
}

func TestErrorsOutsideRules(t *testing.T) {
	for config, field := range map[string]string{
		`{"state": {"timeouts": {"udp": "0s"}}}`:           "state.timeouts.udp",
		`{"state": {"timeouts": {"udpStream": "2900ms"}}}`: "state.timeouts.udpStream",
		`{"state": {"pickup": "-1s"}}`:                     "state.pickup",
		`{"state": {"maxConnections": 0}}`:                 "state.maxConnections",
		`{"ruels": []}`:                                    "ruels",
		`{"rules": [` + strings.Repeat(`{"action": "deny"},`, MaxRules) + `{"action": "deny"}]}`: "rules",
	} {
		_, err := Control().Compile(json.RawMessage(config))
		var wrong *sdk.ConfigError
		if !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%.60s: %v, want an error at %s", config, err, field)
		}
	}
}

// The schema and the control plane have the same defaults, and accept the same configs.
func TestSchemaAgrees(t *testing.T) {
	m := pkgstest.Package(t)
	full, err := m.WithDefaults(map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	a, b := compileConfig(t, full), compileConfig(t, `{}`)
	if fmt.Sprintf("%+v", a.config) != fmt.Sprintf("%+v", b.config) {
		t.Errorf("defaults of the schema:\n%+v\nof the control plane:\n%+v", a.config, b.config)
	}
	rule := map[string]any{"name": "x", "action": "allow", "direction": "both", "protocol": "tcp", "src": "10.0.0.0/8",
		"srcPort": 1, "dstPort": "2-3"}
	config := map[string]any{"rules": []any{rule, map[string]any{"action": "deny", "protocol": 47}}}
	if err := m.ValidateConfig(config); err != nil {
		t.Error(err)
	}
	compileConfig(t, config)
}

func TestNormalForm(t *testing.T) {
	f := compileConfig(t, `{"rules": [
		{"action": "allow", "protocol": "tcp", "src": "10.0.0.0/8", "dst": "192.0.2.1", "srcPort": "1000-2000", "dstPort": "80"},
		{"action": "deny", "direction": "ingress", "protocol": 58, "icmpType": 128},
		{"action": "deny"}]}`)
	for i, want := range []string{"allow both tcp from 10.0.0.0/8 port 1000-2000 to 192.0.2.1/32 port 80",
		"deny ingress icmpv6 type 128", "deny both any"} {
		if got := f.rules[i].String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
