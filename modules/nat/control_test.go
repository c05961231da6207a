// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"testing"

	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

func TestConfigs(t *testing.T) {
	for config, field := range map[string]string{
		`{}`:                                      "to_ip",
		`{"to_ip": "2001:db8::1"}`:                "to_ip",
		`{"to_ip": "224.0.0.1"}`:                  "to_ip",
		`{"to_ip": "192.0.2.9/24"}`:               "to_ip",
		`{"to_ip6": "::ffff:192.0.2.9"}`:          "to_ip6",
		`{"to_ip6": "fe80::1%eth0"}`:              "to_ip6",
		`{"to_ip": "192.0.2.9", "colour": "red"}`: "colour",
		`{"to_ip": "192.0.2.9", "ports": {"first": 2, "last": 1}}`:                                "ports.first",
		`{"to_ip": "192.0.2.9", "services": 1024}`:                                                "services",
		`{"to_ip": "192.0.2.9", "except": ["10.0.0.0/8", "10.0.0.0/33"]}`:                         "except[1]",
		`{"to_ip": "192.0.2.9", "forward": [{"port": 1, "to_port": 1}]}`:                          "forward[0].to_ip",
		`{"to_ip": "192.0.2.9", "forward": [{"port": 1, "to_port": 1, "to_ip": "fc00::1"}]}`:      "forward[0].to_ip",
		`{"to_ip": "192.0.2.9", "forward": [{"port": 40001, "to_port": 1, "to_ip": "10.0.0.1"}]}`: "forward[0].port",
		`{"to_ip": "192.0.2.9", "forward": [{"port": 1, "to_port": 1, "to_ip": "10.0.0.1"},
			{"port": 1, "to_port": 2, "to_ip": "10.0.0.1"}]}`: "forward[1].port",
		`{"to_ip": "192.0.2.9", "forward": [{"port": 1, "to_port": 1, "to_ip": "10.0.0.1"},
			{"port": 2, "to_port": 1, "to_ip": "10.0.0.1"}]}`: "forward[1].to_port",
	} {
		_, err := Control().Compile(json.RawMessage(config))
		var wrong *sdk.ConfigError
		if !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v, want an error of %s", config, err, field)
		}
	}
	if _, err := Control().Compile(json.RawMessage(`{"to_ip": "192.0.2.9", "except": ["10.0.0.1", "::/0"]}`)); err != nil {
		t.Error(err)
	}
}

// Mappings of interfaces that are missing in two consecutive sweeps are deleted; others are listed and stay. Up to the
// configured number of services, the mappings of one service take no room from others.
func TestMappingsOfServices(t *testing.T) {
	m := load(t, `{"to_ip": "192.0.2.9", "ports": {"first": 40000, "last": 40001}, "services": 1}`)
	open(t, m, packet{proto: "udp", src: client4, dst: remote4, from: 1000, to: 2})
	all, err := sdk.ReadTable[outside, mapping](m.Maps, mapMappings)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	var here uint32
	for key, value := range all {
		here = key.Ifindex
		key.Ifindex, value.Inside.Ifindex = here+1000, here+1000
		port := uint32(key.Port[0]) | uint32(key.Port[1])<<8
		if err := errors.Join(m.Maps.Put(mapMappings, key, value), m.Maps.Put(mapPorts, value.Inside, port)); err != nil {
			t.Fatal(err)
		}
	}
	more := packet{proto: "udp", src: client4, dst: remote4, from: 1001, to: 2}
	expect(t, m, "egress", more.frame(t), more.frame(t), "table_full")

	g := sdktest.Open[running](t, m.Compiled, m.Live(sdk.Attachment{Service: "web", Interface: "web0", Ifindex: here}))
	gone := map[uint32]bool{}
	for i, want := range []int{2, 1, 1} {
		if gone, err = g.sweep(gone); err != nil {
			t.Fatal(err)
		}
		mappings, err := sdk.ReadTable[outside, mapping](m.Maps, mapMappings)
		ports, err2 := sdk.ReadTable[inside, uint32](m.Maps, mapPorts)
		if err := errors.Join(err, err2); err != nil || len(mappings) != want || len(ports) != want {
			t.Errorf("sweep %d: %v, %v, %v; want %d", i, mappings, ports, err, want)
		}
	}
	open(t, m, more)
	w := httptest.NewRecorder()
	g.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/mappings", nil))
	var listed []Mapping
	if err := json.Unmarshal(w.Body.Bytes(), &listed); err != nil || len(listed) != 2 || listed[0].Service != "web" ||
		listed[0].Protocol != "udp" || listed[0].Address != client4 || listed[0].Outside != 40000 {
		t.Errorf("%s: %v", w.Body, err)
	}
	samples, err := g.Collect()
	if err != nil || len(samples) != 1 || samples[0].Value != 2 {
		t.Errorf("%v, %v", samples, err)
	}
}
