// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/sdk"
)

// Manifest and code have the same defaults, and accept the same configs.
func TestDefaultsAreTheManifests(t *testing.T) {
	pkg, err := pkgs.Open(".")
	if err != nil {
		t.Fatalf("%v; run make bpf", err)
	}
	full, err := pkg.WithDefaults(nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	want, _ := json.Marshal(defaults())
	c.Ranges = nil
	if got, _ := json.Marshal(c); string(got) != string(want) {
		t.Errorf("manifest %s\ncode     %s", got, want)
	}
}

func TestConfigMistakes(t *testing.T) {
	for config, field := range map[string]string{
		`{"ranges": ["10.30.0.1/16"]}`:                                          "ranges[0]",
		`{"ranges": ["fdff::/21", "0.0.0.0/0"]}`:                                "ranges[1]",
		`{"ranges": ["10.0.0.0/8", "10.30.0.0/16"]}`:                            "ranges[1]",
		`{"ranges": ["::ffff:10.30.0.0/112"]}`:                                  "ranges[0]",
		`{"ranges": ["224.0.0.0/8"]}`:                                           "ranges[0]",
		`{"ranges": ["all"]}`:                                                   "config",
		`{"timeouts": {"udp": "0s"}}`:                                           "timeouts.udp",
		`{"timeouts": {"udp": "soon"}}`:                                         "config",
		`{"timeouts": {"udpStream": "500ms"}}`:                                  "timeouts.udpStream",
		`{"passiveHealth": {"ejectFor": "0s"}}`:                                 "passiveHealth.ejectFor",
		`{"unknown": {"holdPackets": -1}}`:                                      "unknown.holdPackets",
		`{"tables": {"slots": 0}}`:                                              "tables.slots",
		`{"colour": "red"}`:                                                     "colour",
		`{"ranges": [` + strings.Repeat(`"10.0.0.0/8",`, 16) + `"11.0.0.0/8"]}`: "ranges",
	} {
		_, err := Control().Compile(json.RawMessage(config))
		var wrong *sdk.ConfigError
		if !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v, want a mistake in %s", config, err, field)
		}
	}
}

func TestFill(t *testing.T) {
	p := compileConfig(t, `{"ranges": ["10.30.0.0/16", "fdff:2000::/21"]}`)
	maps := newMaps(t, p)
	if err := p.Fill(maps); err != nil {
		t.Fatal(err)
	}
	var got addressRanges
	if err := maps[mapRanges].Lookup(uint32(1), &got); err != nil || got.Count != 2 {
		t.Fatalf("%d ranges, %v", got.Count, err)
	}
	in := func(text string) int {
		a := addressOf(netip.MustParseAddr(text))
		for i, r := range got.Range[:got.Count] {
			masked := a
			for b := range masked {
				masked[b] &= r.Mask[b]
			}
			if masked == r.Prefix {
				return i
			}
		}
		return -1
	}
	for text, want := range map[string]int{"10.30.255.255": 0, "10.31.0.0": -1, "fdff:27ff::1": 1, "fdff:2800::": -1,
		"::a1e:1": -1, "::": -1} {
		if got := in(text); got != want {
			t.Errorf("%s is in range %d, want %d", text, got, want)
		}
	}
}

func (p *testControl) get(path string, into any) int {
	p.t.Helper()
	w := httptest.NewRecorder()
	p.w.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
		p.t.Fatalf("%s: %v: %s", path, err, w.Body)
	}
	return w.Code
}

func TestRoutes(t *testing.T) {
	p := newTestControl(t, "")
	p.changed(localInstance("w0", 7, "10.18.0.1/24"), true)
	vs := webService(2, v1alpha1.PolicyClosest)
	vs.Spec.Addresses = append(vs.Spec.Addresses, v1alpha1.VirtualAddress{Address: "10.30.1.1", Instance: "web-1"})
	vs.Spec.Instances[1].Draining, vs.Spec.Instances[1].Node = true, "192.0.2.2"
	p.put(vs, sdk.VirtualService{Name: "db"})
	index, _ := p.entry("web-0")
	p.w.maps.stats[index] = instanceStats{Sessions: 3, Opened: 9, RTT: 123000}
	k, s := pairOf("10.18.0.9", "10.30.0.1", "10.18.0.1", protoTCP, 5000, index, false)
	for i := range k {
		s[i].Seen, s[i].State = sdk.Monotonic(), stateAnswered
		p.session(k[i], s[i])
	}
	seen := time.Now()
	var services []ServiceReport
	p.get("/services?name=web", &services)
	p.same("services", services,
		[]ServiceReport{{Name: "web", Instances: []string{"web-0", "web-1"}, Addresses: []AddressReport{
			{Address: "10.30.0.1", Policy: "closest", Slots: 1, ID: 1}, {Address: "fdff:2000::1", Policy: "closest", Slots: 1,
				ID: 2}, {Address: "10.30.1.1", Instance: "web-1", ID: 3}}}})
	var instances []InstanceReport
	p.get("/instances?service=web", &instances)
	p.same("instances", instances, []InstanceReport{
		{Service: "web", Name: "web-0", Index: index, Generation: 1, Addresses: []string{"10.18.0.1", "fd00::1"},
			State: "ready", Interface: "vw0", Path: "peer",
			Weight: 1, Sessions: 3, Opened: 9, Connect: "123µs"},
		{Service: "web", Name: "web-1", Index: index + 1, Generation: 1, Addresses: []string{"10.18.0.2", "fd00::2"},
			State: "draining", Path: "ordinary", Node: "192.0.2.2", Weight: 1}})
	want := SessionReport{Protocol: "tcp", Client: "10.18.0.9:5000", Virtual: "10.30.0.1:80", Target: "10.18.0.1:8080",
		Service: "web", Instance: "web-0",
		Ifindex: 7, State: "established"}
	for query, n := range map[string]int{"": 1, "?service=web&client=10.18.0.9&protocol=tcp&instance=web-0": 1,
		"?service=db": 0, "?client=10.18.0.1": 0, "?protocol=udp": 0} {
		var sessions SessionsReport
		p.get("/sessions"+query, &sessions)
		for i := range sessions.Sessions {
			// rounded
			if idle, err := time.ParseDuration(sessions.Sessions[i].Idle); err != nil || idle < 0 || idle > time.Since(seen)+
				time.Second {
				t.Errorf("idle for %s, %v, of %v", sessions.Sessions[i].Idle, err, time.Since(seen))
			}
			sessions.Sessions[i].Idle = ""
		}
		p.same("sessions"+query, sessions.Sessions, []SessionReport{want}[:n])
	}
	fillSessions(p, 10)
	var sessions SessionsReport
	p.get("/sessions?limit=5", &sessions)
	if len(sessions.Sessions) != 5 || !sessions.Truncated {
		t.Errorf("%d sessions, truncated %t", len(sessions.Sessions), sessions.Truncated)
	}
	var problem map[string]any
	if code := p.get("/sessions?limit=all", &problem); code != 400 {
		t.Errorf("status %d: %v", code, problem)
	}
	p.sweep()
	var stats StatsReport
	p.get("/stats", &stats)
	p.same("instances", stats.Instances, map[string]int{"ready": 1, "draining": 1, "ejected": 0, "gone": 0})
	p.same("addresses", stats.Tables["addresses"], Occupancy{3, 16384})
	p.same("sessions", stats.Tables["sessions"].Capacity, 65536)
}

func TestMeasure(t *testing.T) {
	p := newTestControl(t, "")
	p.put(webService(2, v1alpha1.PolicyRoundRobin))
	p.arrive("10.30.0.99", "x")
	p.sweep()
	samples, err := p.w.Collect()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, s := range samples {
		if s.Help == "" || s.Counter != strings.HasSuffix(s.Name, "_total") {
			t.Errorf("%s: help %q, counter %t", s.Name, s.Help, s.Counter)
		}
		got[s.Name+fmt.Sprint(s.Labels)] = s.Value
	}
	for name, want := range map[string]float64{
		"table_used" + fmt.Sprint(map[string]string{"table": "instances"}):            2,
		"table_capacity" + fmt.Sprint(map[string]string{"table": "slots"}):            1 << 18,
		"instances" + fmt.Sprint(map[string]string{"state": "ready"}):                 2,
		"held_packets" + fmt.Sprint(map[string]string(nil)):                           1,
		"events_total" + fmt.Sprint(map[string]string{"event": "opened"}):             0,
		"unknown_addresses_total" + fmt.Sprint(map[string]string{"outcome": "asked"}): 1,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s: %v (%t), want %v", name, v, ok, want)
		}
	}
}

// Measurements move an address of policy closest to another instance.
func TestClosestFollowsMeasurements(t *testing.T) {
	p := newTestControl(t, "")
	p.put(webService(2, v1alpha1.PolicyClosest))
	p.same("not measured", p.served("10.30.0.1"), []string{"web-0", "web-1"})
	for name, rtt := range map[string]time.Duration{"web-0": 900 * time.Microsecond, "web-1": 300 * time.Microsecond} {
		index, _ := p.entry(name)
		p.w.maps.stats[index].RTT = uint64(rtt)
	}
	p.now = p.now.Add(time.Second)
	if err := p.w.rankAgain(p.now); err != nil {
		t.Fatal(err)
	}
	p.same("measured", p.served("10.30.0.1"), []string{"web-1"})
}

func TestMemoryBudget(t *testing.T) {
	pkg, err := pkgs.Open(".")
	if err != nil {
		t.Fatalf("%v; run make bpf", err)
	}
	for _, config := range []string{"",
		`{"tables": {"addresses": 32768, "ports": 65536, "instances": 100000, "slots": 1048576}}`} {
		if err := pkg.CheckMemory("", compileConfig(t, config).Settings().MaxEntries); err != nil {
			t.Errorf("%s: %v", config, err)
		}
	}
}
