// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// The Go structures in maps have the layout of the compiled data plane.
func TestLayouts(t *testing.T) {
	p := pkgstest.Package(t)
	spec, err := p.Spec(string(chain.TC))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		size    int
		offsets map[string]int
	}{
		{"fw_rule4", 32, map[string]int{"mask": 0, "value": 8, "l4": 16}},
		{"fw_rule6", 80, map[string]int{"mask": 0, "value": 32, "l4": 64}},
		{"fw_l4rule", 16, map[string]int{"sport": 0, "sports": 2, "dport": 4, "dports": 6, "proto": 8, "proto_mask": 9,
			"decision": 12}},
		{"fw_conn", 56, map[string]int{"seen": 0, "generation": 8, "state": 12, "from": 13, "flags": 15}},
		{"fw_peer", 20, map[string]int{"end": 0, "maxend": 4, "maxwin": 8, "acked": 12, "scale": 16, "flags": 17}},
		{"fw_usage", 24, map[string]int{"established": 0, "opening": 8, "since": 16}},
		{"fw_key4", 20, map[string]int{"ifindex": 0, "local": 4, "remote": 8, "local_port": 12, "remote_port": 14,
			"proto": 16, "kind": 17}},
		{"fw_key6", 44, map[string]int{"ifindex": 0, "local": 4, "remote": 20, "local_port": 36, "remote_port": 38,
			"proto": 40, "kind": 41}},
		{"fw_hits", 16, map[string]int{"packets": 0, "bytes": 8}},
		{"fw_owner", 16, map[string]int{"rule": 0, "fill": 8}},
		{"fw_table", 40, map[string]int{"established": 0, "full": 8, "opening": 16, "share": 24, "common": 28,
			"opening_share": 32, "opening_common": 36}},
		{"fw_chunk", 8 * chunkSize, map[string]int{"node": 0}},
	} {
		var s *btf.Struct
		if err := spec.Types.TypeByName(c.name, &s); err != nil {
			t.Error(err)
			continue
		}
		got := map[string]int{}
		for _, m := range s.Members {
			if _, asked := c.offsets[m.Name]; asked {
				got[m.Name] = int(m.Offset.Bytes())
			}
		}
		if diff := cmp.Diff(c.offsets, got); diff != "" || int(s.Size) != c.size {
			t.Errorf("%s: %d bytes, want %d\n%s", c.name, s.Size, c.size, diff)
		}
	}
}

func TestSlotsOutliveChanges(t *testing.T) {
	owners := make([]owner, slotRules+8)
	must := func(rules ...uint64) []uint32 {
		t.Helper()
		a, err := chooseSlots(owners, rules)
		if err != nil {
			t.Fatal(err)
		}
		for i, slot := range a.slots {
			owners[slot] = owner{Rule: rules[i], Fill: a.fill}
		}
		return a.slots
	}
	first := must(11, 12, 13)
	second := must(13, 14, 11)
	if second[0] != first[2] || second[2] != first[0] {
		t.Errorf("rules 13 and 11 moved from %v to %v", first, second)
	}
	if second[1] == first[1] {
		t.Error("the slot of the rule that just left was given away while its rule set may still run")
	}
	third := must(15, 16, 17, 18, 12)
	if third[4] != first[1] {
		t.Error("a rule that comes back has lost its counter")
	}
	for _, slot := range third[:4] {
		for _, running := range second {
			if slot == running {
				t.Errorf("slot %d of the running rule set was given away", slot)
			}
		}
	}
	if _, err := chooseSlots(owners, []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9}); err == nil {
		t.Error("nine rules fit eight slots")
	}
}

// Only the part of the owners' table that rules have used or may need is mapped.
func TestOwnersAreMappedAsFarAsUsed(t *testing.T) {
	sdktest.NeedRoot(t)
	const size, all = 512, 2048
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: all,
		Flags: unix.BPF_F_MMAPABLE})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	check := func(n, want int) {
		t.Helper()
		err := mapOwned(m, n, size, func(_ *ebpf.Map, owners []owner) error {
			if len(owners) != want {
				t.Errorf("%d owners for %d rules, want %d", len(owners), n, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	check(100, size)
	check(size-slotRules-1, size)
	check(size-slotRules, all)
	check(size, all)
	if err := m.Put(uint32(size-101), owner{Rule: 1, Fill: 1}); err != nil {
		t.Fatal(err)
	}
	check(100, all)
	check(99, size)
}

// Rules that are activated again without being filled keep their hit counters while other rules are filled.
func TestSlotsOfRulesInForceAgain(t *testing.T) {
	rules := func(net int) *Firewall {
		text := make([]string, 8000) // three times as many would not all get a counter
		for i := range text {
			text[i] = fmt.Sprintf(`{"action": "allow", "dst": "10.%d.%d.%d"}`, net, i/256, i%256)
		}
		return compileConfig(t, fmt.Sprintf(`{"rules": [%s]}`, strings.Join(text, ",")))
	}
	first, next := rules(1), rules(2)
	k := loadCompiled(t, first, nil)
	before := k.open(k.live(1)).slots
	if err := next.Fill(k.maps); err != nil {
		t.Fatal(err)
	}
	k.open(k.live(1)) // a change back
	if err := rules(3).Fill(k.maps); err != nil {
		t.Fatal(err)
	}
	if after := k.open(k.live(1)).slots; !slices.Equal(before, after) {
		t.Error("rules in force have lost their hit counters")
	}
}

// The cost of changing a few rules does not depend on the number of hit counters.
func TestChangeCopiesNoTable(t *testing.T) {
	f := compileConfig(t, `{"rules": [{"action": "allow", "dst": "10.0.0.1"}]}`)
	k := loadCompiled(t, f, nil)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		if err := f.Fill(k.maps); err != nil {
			t.Fatal(err)
		}
		if _, err := keepSlots(k.maps, f.identities); err != nil {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if n := (after.TotalAlloc - before.TotalAlloc) / 10; n > 100<<10 {
		t.Errorf("%d KiB are allocated", n>>10)
	} else {
		t.Logf("%d KiB are allocated", n>>10)
	}
}

func TestEqualRulesHaveSeparateCounters(t *testing.T) {
	f := compileConfig(t, `{"rules": [{"action": "deny"}, {"action": "deny"}, {"action": "deny", "name": "x"}]}`)
	ids := f.identities
	if ids[0] == ids[1] || ids[1] == ids[2] {
		t.Error(ids)
	}
	g := compileConfig(t, `{"rules": [{"action": "allow", "name": "x"}, {"action": "deny"}]}`)
	if other := g.identities; other[0] != ids[2] || other[1] != ids[0] {
		t.Error("identities depend on place, or on what a named rule says")
	}
}

// Hit counters belong to the rules, also after the next configuration has been filled into the same state maps.
func TestHitsSurviveAChange(t *testing.T) {
	k := loadFirewall(t, `{"state": {"enabled": false}, "rules": [
		{"name": "web", "action": "allow", "protocol": "tcp", "dstPort": 80},
		{"action": "deny", "protocol": "udp"}]}`)
	for range 3 {
		k.pass(frame{Packet: tcp(svc4, 1, far4, 80, tcpSYN)}.bytes(), false)
	}
	k.pass(frame{Packet: udp(svc4, 1, far4, 80)}.bytes(), false)
	next := compileConfig(t, `{"rules": [{"action": "deny", "protocol": "tcp"}, {"action": "deny", "protocol": "udp"},
		{"name": "web", "action": "allow", "protocol": "tcp", "dstPort": "80-81"}]}`)
	maps := map[string]*ebpf.Map{}
	for name, m := range k.maps {
		maps[name] = m
	}
	if _, err := assignSlots(maps, next.identities); err != nil {
		t.Fatal(err)
	}
	report, err := sdktest.Open[*running](t, next, k.live(1)).listRules()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint64{0, 1, 3} {
		if report.Rules[i].Packets != want {
			t.Errorf("%s: %d packets, want %d", report.Rules[i].Rule, report.Rules[i].Packets, want)
		}
	}
}

func TestHandler(t *testing.T) {
	k := loadFirewall(t, `{"rules": [
		{"name": "web", "action": "allow", "direction": "ingress", "protocol": "tcp", "dstPort": 80},
		{"action": "deny", "direction": "egress", "protocol": "udp", "dst": "192.0.2.0/24"}]}`)
	h := k.open(k.live(1)).Handler()
	ask := func(method, path, body string, status int, into any) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
		if w.Code != status {
			t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	k.pass(frame{Packet: tcp(far4, 999, svc4, 80, tcpSYN)}.bytes(), true)
	k.pass(frame{Packet: udp(svc4, 999, far4, 80)}.bytes(), false)
	var rules RulesReport
	ask("GET", "/rules", "", 200, &rules)
	if len(rules.Rules) != 2 || rules.Rules[0].Packets != 1 || rules.Rules[1].Packets != 1 ||
		rules.Rules[0].Name != "web" {
		t.Errorf("%+v", rules)
	}
	var conns ConnectionsReport
	ask("GET", "/connections", "", 200, &conns)
	took := time.Since(begin) + 2*time.Second // the data plane's clock is coarse, and seconds are rounded
	want := []Connection{{"web", "veth1", "ingress", "tcp", svc4 + ":80", far4 + ":999", "new", ""}}
	if diff := cmp.Diff(want, conns.Connections, cmpopts.IgnoreFields(Connection{}, "Idle")); diff != "" {
		t.Fatal(diff)
	}
	if idle, err := time.ParseDuration(conns.Connections[0].Idle); err != nil || idle < 0 || idle > took {
		t.Errorf("idle for %s, %v, of %v", conns.Connections[0].Idle, err, took)
	}
	var e Explanation
	ask("POST", "/explain",
		`{"direction": "ingress", "protocol": "tcp", "src": "192.0.2.7", "dst": "10.0.0.2", "dstPort": 80}`, 200, &e)
	if e.Action != "allow" || e.Index == nil || *e.Index != 0 || e.Name != "web" {
		t.Errorf("%+v", e)
	}
	e = Explanation{}
	ask("POST", "/explain",
		`{"direction": "ingress", "protocol": "tcp", "src": "192.0.2.7", "dst": "10.0.0.2", "dstPort": 81}`, 200, &e)
	if e.Action != "deny" || e.Index != nil {
		t.Errorf("%+v", e)
	}
	var problem map[string]any
	ask("POST", "/explain", `{"direction": "in"}`, 400, &problem)
	ask("POST", "/explain", `{"colour": "red"}`, 400, &problem)
}

func TestMeasure(t *testing.T) {
	k := loadFirewall(t,
		`{"rules": [{"name": "web", "action": "allow", "direction": "ingress", "protocol": "tcp", "dstPort": 80}]}`)
	k.pass(frame{Packet: tcp(far4, 999, svc4, 80, tcpSYN)}.bytes(), true)
	samples, err := k.open(k.live(1)).Collect()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, s := range samples {
		got[s.Name+fmt.Sprint(s.Labels)] = s.Value
	}
	for name, want := range map[string]float64{
		"rule_packets_total" + fmt.Sprint(map[string]string{"rule": "web", "action": "allow"}): 1,
		"packets_total" + fmt.Sprint(map[string]string{"decision": "rule_allow"}):              1,
		"packets_total" + fmt.Sprint(map[string]string{"decision": "default_ingress"}):         0,
		"connections_capacity" + fmt.Sprint(map[string]string(nil)):                            65536,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s: %v (%t), want %v", name, v, ok, want)
		}
	}
}

// The maps stay within the package's budget for any config.
func TestMemoryBudget(t *testing.T) {
	p := pkgstest.Package(t)
	f := compileConfig(t, ruleFamilies[2].config(MaxRules, true, true))
	if err := p.CheckMemory("", f.Settings().MaxEntries); err != nil {
		t.Error(err)
	}
}

// Rule sets of similar size use the same program; another size, or other options, require another program.
func TestRulesAreValues(t *testing.T) {
	config := func(rules int, more string) sdk.Settings {
		text := make([]string, rules)
		for i := range text {
			text[i] = fmt.Sprintf(`{"action": "allow", "dst": "10.0.%d.%d"}`, i/256, i%256)
		}
		return compileConfig(t, fmt.Sprintf(`{"rules": [%s]%s}`, strings.Join(text, ","), more)).Settings()
	}
	shape := func(s sdk.Settings) string { return fmt.Sprint(s.Constants, s.MaxEntries) }
	few := config(1, "")
	for name, s := range map[string]sdk.Settings{"more rules": config(1000, ""),
		"another policy": config(1, `, "defaultPolicy": {"ingress": "allow"}`)} {
		if shape(s) != shape(few) || fmt.Sprint(s.Tunables) == fmt.Sprint(few.Tunables) {
			t.Errorf("%s: %+v\nbefore: %+v", name, s, few)
		}
	}
	for name, s := range map[string]sdk.Settings{"many rules": config(1500, ""),
		"no fragments": config(1, `, "fragments": "deny"`)} {
		if shape(s) == shape(few) {
			t.Errorf("%s: %+v\nbefore: %+v", name, s, few)
		}
	}
}

// Rule sets that are too large for two halves get separate maps, and the largest of the others fit into the memory.
func TestLargeRuleSets(t *testing.T) {
	f := compileConfig(t, `{"rules": [{"name": "one", "action": "allow", "dst": "10.0.0.1"}]}`)
	f.tree.chunks = append(f.tree.chunks, make([][]uint64, mostChunks-len(f.tree.chunks))...)
	most := f.Settings()
	if err := pkgstest.Package(t).CheckMemory("", most.MaxEntries); err != nil || most.Shape != "" {
		t.Errorf("%d pages: shape %q, %v", mostChunks, most.Shape, err)
	}
	f.tree.chunks = append(f.tree.chunks, nil)
	large := f.Settings()
	f.rules[0].Name, f.identities = "other", []uint64{2}
	if renamed := f.Settings(); large.Shape == "" || renamed.Shape == large.Shape {
		t.Errorf("shapes %q and %q, want two", large.Shape, renamed.Shape)
	}
	if n := large.MaxEntries[mapTree]; n != mostChunks+1 || large.Constants["tree_half"] != nil {
		t.Errorf("%d pages, half %v", n, large.Constants["tree_half"])
	}
	k := loadCompiled(t, f, nil)
	if err := k.Fill(k.maps); err != nil {
		t.Error(err)
	}
}
