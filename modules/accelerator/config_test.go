// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk"
)

func configOf(t testing.TB, text string) *config {
	t.Helper()
	c, err := parseConfig(json.RawMessage(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Errors name the field and the valid values.
func TestConfigErrors(t *testing.T) {
	ports := make([]string, 33)
	for i := range ports {
		ports[i] = fmt.Sprint(2*i + 1)
	}
	for _, c := range []struct{ config, field, reason string }{
		{`{"mode": "fast"}`, "mode", "not one of adaptive"},
		{`{"ports": {"only": ["9-1"]}}`, "ports.only[0]", "range such as"},
		{`{"ports": {"only": [80, 65536]}}`, "ports.only[1]", "range such as"},
		{`{"ports": {"only": [0]}}`, "ports.only[0]", "range such as"},
		{`{"ports": {"except": ["80-"]}}`, "ports.except[0]", "range such as"},
		{`{"visible": [{}, {"ports": ["a"]}]}`, "visible[1].ports[0]", "range such as"},
		{`{"visible": [{"networks": ["10.0.0.0/33"]}]}`, "visible[0].networks[0]", "neither an address"},
		{`{"visible": [{"networks": ["10.0.0.1/8"]}]}`, "visible[0].networks[0]", "10.0.0.0/8?"},
		{`{"visible": [{"networks": ["fe80::1%eth0"]}]}`, "visible[0].networks[0]", "neither an address"},
		{`{"visible": [{"ports": [` + strings.Join(ports, ",") + `]}]}`, "visible", "at most 32"},
		{`{"programs": {"allow": ["redis", "bin/redis"]}}`, "programs.allow[1]", "from the root"},
		{`{"programs": {"deny": ["./redis"]}}`, "programs.deny[0]", "from the root"},
		{`{"thresholds": {"passMessages": 65}}`, "thresholds.leaveMessages", "at least passMessages"},
		{`{"thresholds": {"passBytes": 1001, "leaveBytes": 1000}}`, "thresholds.leaveBytes", "at least passBytes"},
		{`{"thresholds": {"retry": 3}}`, "thresholds.retry", "power of two"},
		{`{"thresholds": {"minTurns": 4294967295}}`, "thresholds.minTurns", "too large"},
		{`{"thresholds": {"minTurns": 268435456}}`, "thresholds.minTurns", "too large"},
		{`{"colour": "red"}`, "colour", "unknown property"},
	} {
		_, err := Control().Compile(json.RawMessage(c.config))
		var wrong *sdk.ConfigError
		if !errors.As(err, &wrong) || wrong.Field != c.field || !strings.Contains(wrong.Reason, c.reason) {
			t.Errorf("%.120s: %v", c.config, err)
		}
	}
}

// The defaults of the schema equal those of the control plane.
func TestDefaults(t *testing.T) {
	defaults, err := pkgstest.Package(t).WithDefaults(nil)
	if err != nil {
		t.Fatal(err)
	}
	filled, err := json.Marshal(defaults)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := configOf(t, ""), configOf(t, string(filled)); a.entry(fair) != b.entry(fair) || a.ports() != b.ports() ||
		fmt.Sprint(a.Past) != fmt.Sprint(b.Past) {
		t.Errorf("%+v without the schema, %+v with it", a, b)
	}
}

func TestPorts(t *testing.T) {
	for _, c := range []struct {
		config  string
		in, out []uint16
	}{
		{`{}`, []uint16{0, 1, 80, 65535}, nil},
		{`{"ports": {"only": [80, "8000-8010"]}}`, []uint16{80, 8000, 8010}, []uint16{0, 79, 81, 7999, 8011, 65535}},
		{`{"ports": {"except": ["64-127", 65535]}}`, []uint16{0, 63, 128, 65534}, []uint16{64, 127, 65535}},
		{`{"ports": {"only": ["1-100"], "except": ["50"]}}`, []uint16{1, 49, 51, 100}, []uint16{0, 50, 101}},
	} {
		bits := configOf(t, c.config).ports()
		has := func(port uint16) bool { return bits[port/64]>>(port%64)&1 != 0 }
		for _, port := range c.in {
			if !has(port) {
				t.Errorf("%s: %d is left out", c.config, port)
			}
		}
		for _, port := range c.out {
			if has(port) {
				t.Errorf("%s: %d takes part", c.config, port)
			}
		}
	}
}

// Each combination of ports and networks is an entry; IPv4 is mapped into IPv6.
func TestVisibles(t *testing.T) {
	got := configOf(t,
		`{"visible": [{"ports": [80, "90-99"], "networks": ["192.0.2.0/24", "fd00::1"]}, {"ports": [22]}]}`).visibles()
	four := visibleEntry{Address: [16]byte{10: 255, 11: 255, 12: 192, 13: 0, 14: 2}, First: 80, Last: 80}
	six := visibleEntry{Address: [16]byte{0: 0xfd, 15: 1}, First: 90, Last: 99}
	for i := range 16 {
		six.Mask[i] = 255
		if i < 15 {
			four.Mask[i] = 255
		}
	}
	if len(got) != 5 || got[0] != four || got[3] != six || got[4] != (visibleEntry{First: 22, Last: 22}) {
		t.Errorf("%+v", got)
	}
}

// The maximum size of redirected messages is measured, unless the config sets it.
func TestPassBytes(t *testing.T) {
	turns := []sdk.RoundTrip{{Bytes: 1 << 10, Plain: 100, Redirected: 50}, {Bytes: 256 << 10, Plain: 100, Redirected: 90},
		{Bytes: 1 << 20, Plain: 100, Redirected: 91},
		{Bytes: 4 << 20, Plain: 100, Redirected: 1}}
	for _, c := range []struct {
		config string
		turns  []sdk.RoundTrip
		want   uint32
	}{
		{``, nil, usualPaying}, {``, turns, 256 << 10}, {``, turns[:1], leastPaying}, {``, turns[2:], leastPaying},
		{`{"thresholds": {"passBytes": 5}}`, turns, 5}, {`{"thresholds": {"leaveBytes": 1000}}`, turns, 1000},
	} {
		if got := configOf(t, c.config).entry(sdk.Kernel{RoundTrips: c.turns}).PassBytes; got != c.want {
			t.Errorf("%s, %v: %d, want %d", c.config, c.turns, got, c.want)
		}
	}
}

// Programs are named by path or file name, not by the name of the process.
func TestListed(t *testing.T) {
	c := configOf(t, `{"programs": {"allow": ["nginx", "/usr/bin/node"]}}`)
	for path, want := range map[string]bool{"/usr/sbin/nginx": true, "/opt/nginx": true, "/usr/sbin/nginx2": false,
		"/usr/bin/node": true,
		"/opt/node":     false, "/bin/other": false, "": false} {
		if c.allows(path) != want {
			t.Errorf("%s: %v", path, !want)
		}
	}
}
