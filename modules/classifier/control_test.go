// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"

	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/model"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// testControl is a control plane with maps without traffic; the test acts as the agent.
type testControl struct {
	testing.TB
	*running
	live sdk.Live
}

const plantIfindex = 7

func newTestControl(t testing.TB, config string) *testControl {
	t.Helper()
	return newTestControlOn(t, config, newMaps(t, compileConfig(t, config)))
}

// newTestControlOn starts a control plane on the maps.
func newTestControlOn(t testing.TB, text string, maps sdk.Maps) *testControl {
	t.Helper()
	p := &testControl{TB: t, live: sdk.Live{Module: "guard", Maps: maps,
		Attachments: func() []sdk.Attachment {
			return []sdk.Attachment{{Service: "web", Interface: "veth7", Ifindex: plantIfindex}}
		}}}
	c := compileConfig(t, text)
	if err := c.Fill(maps); err != nil {
		t.Fatal(err)
	}
	p.running = sdktest.Open[*running](t, c, p.live)
	return p
}

func compileConfig(t testing.TB, text string) *config {
	t.Helper()
	return sdktest.Compile[*config](t, Control(), text)
}

func openPackage(t testing.TB) *ebpf.CollectionSpec {
	t.Helper()
	pkg, err := pkgs.Open(".")
	if err != nil {
		t.Fatalf("%v; run make bpf", err)
	}
	spec, err := pkg.Spec("tc")
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// newMaps creates the maps as the agent would for a config.
func newMaps(t testing.TB, f *config) sdk.Maps {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	maps := sdk.Maps{}
	for name, s := range openPackage(t).Maps {
		if strings.HasPrefix(name, ".") {
			continue
		}
		s = s.Copy()
		s.MaxEntries = cmp.Or(f.Settings().MaxEntries[name], s.MaxEntries)
		m, err := ebpf.NewMap(s)
		if err != nil {
			t.Fatalf("map %s: %v", name, err)
		}
		t.Cleanup(func() { m.Close() })
		maps[name] = m
	}
	return maps
}

// document returns a model that classifies sources above a threshold of a feature as attackers.
func document(version int, feature string, threshold float64, classes ...string) string {
	if classes == nil {
		classes = []string{"benign", "attack"}
	}
	names, _ := json.Marshal(classes)
	return fmt.Sprintf(
		`{"format": "kerb-model/1", "name": "m", "version": %d, "extractor": "rpl", "window": "5s", "kind": "tree", "features": [%q], "classes": %s,
		"trees": [[{"feature": 0, "threshold": %v, "left": 1, "right": 2}, {"value": [1, 0]}, {"value": [0, 1]}]]}`, version, feature, names, threshold)
}

func modelOf(name, document string) sdk.Model {
	return sdk.Model{Name: name, Generation: 1, Document: json.RawMessage(document)}
}

func (p *testControl) sendModels(u sdk.ModelUpdate) sdk.ModelAnswer {
	p.Helper()
	answer, err := p.Models(u)
	if err != nil {
		p.Fatal(err)
	}
	return answer
}

// all returns all models.
func (p *testControl) all(models ...sdk.Model) sdk.ModelAnswer {
	p.Helper()
	return p.sendModels(sdk.ModelUpdate{Reset: true, Complete: true, Put: models})
}

// versions returns the versions in the data plane: live and shadow.
func (p *testControl) versions() (out [2]uint32) {
	p.Helper()
	for i, role := range roles {
		v, err := p.slots.Version(role)
		if err != nil {
			p.Fatal(err)
		}
		out[i] = v
	}
	return out
}

func (p *testControl) expect(live, shadow uint32) {
	p.Helper()
	if got := p.versions(); got != [2]uint32{live, shadow} {
		p.Errorf("versions %d run, want %d and %d", got, live, shadow)
	}
}

// ask sends a request to the module's routes, and returns the status and the answer.
func (p *testControl) ask(method, path, body string) (int, string) {
	p.Helper()
	w := httptest.NewRecorder()
	p.Handler().ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
	text, _ := io.ReadAll(w.Body)
	return w.Code, string(text)
}

func get[T any](p *testControl, path string) (v T) {
	p.Helper()
	status, text := p.ask("GET", path, "")
	if err := json.Unmarshal([]byte(text), &v); err != nil || status != 200 {
		p.Fatalf("GET %s: %d %s (%v)", path, status, text, err)
	}
	return v
}

func (p *testControl) condition(kind string) sdk.Condition {
	p.Helper()
	all, err := p.Conditions()
	if err != nil {
		p.Fatal(err)
	}
	for _, c := range all {
		if c.Type == kind {
			return c
		}
	}
	p.Fatalf("no condition %s in %v", kind, all)
	return sdk.Condition{}
}

// The Go structures in maps have the layout of the compiled data plane; fields are matched by name.
func TestDataPlaneLayouts(t *testing.T) {
	spec := openPackage(t)
	for name, mirror := range map[string]any{
		"cls_source": source{}, "cls_range": bounds{}, "cls_slice": slice{}, "cls_seen": seen{}, "cls_record": record{},
		"cls_block": block{},
		"cls_fuse":  fuse{}, "cls_window": window{}, "cls_event": event{}, "cls_prefix": prefix{},
	} {
		sdktest.NamedLayout(t, spec.Types, name, mirror)
	}
}

// Enums that are reported by name have the data plane's values. Unused values are not in BTF; they are read from the
// header.
func TestNames(t *testing.T) {
	header, err := os.ReadFile("maps.h")
	if err != nil {
		t.Fatal(err)
	}
	for prefix, names := range map[string][]string{"EVENT_": eventKinds, "FUSE_": fuseCauses, "COUNT_": countNames} {
		all := regexp.MustCompile(`\tCLS_`+prefix+`([A-Z_]+) = (\d+),`).FindAllStringSubmatch(string(header), -1)
		if len(all) != len(names) {
			t.Errorf("%s: %d values, %d names", prefix, len(all), len(names))
		}
		for _, v := range all {
			n, _ := strconv.Atoi(v[2])
			if got := named(names, uint32(n)); prefix != "FUSE_" && got != strings.ToLower(v[1]) {
				t.Errorf("%s%s is called %s", prefix, v[1], got)
			}
		}
	}
}

// A model is added, changed, followed by an unusable one, and removed; a shadow model is added to it.
func TestModelsAreLoaded(t *testing.T) {
	p := newTestControl(t, `{"model": "m", "shadow": "s"}`)
	if c := p.condition("Model"); c.Status != "Unknown" {
		t.Errorf("before anything is sent: %+v", c)
	}
	if a := p.all(modelOf("other", document(9, "dis", 0))); len(a.Using)+len(a.Refused) != 0 {
		t.Errorf("%+v", a)
	}
	p.expect(0, 0)
	if c := p.condition("Model"); c.Status != "False" || !strings.Contains(c.Message, "no model m") {
		t.Errorf("%+v", c)
	}
	if a := p.sendModels(sdk.ModelUpdate{Put: []sdk.Model{modelOf("m", document(1, "dis", 0)),
		modelOf("s", document(2, "dio", 3))}}); len(a.Using) != 2 {
		t.Errorf("%+v", a)
	}
	p.expect(1, 2)
	if c := p.condition("Model"); c.Status != "True" || c.Message != "m, version 1" {
		t.Errorf("%+v", c)
	}
	p.sendModels(sdk.ModelUpdate{Put: []sdk.Model{modelOf("m", document(3, "dis", 1))}})
	p.expect(3, 2)
	for name, bad := range map[string]string{
		"no document":       `{}`,
		"another extractor": strings.Replace(document(4, "dis", 0), `"rpl"`, `"flow"`, 1),
		"another feature":   document(4, "disks", 0),
		"no number":         strings.Replace(document(4, "dis", 0), "[1, 0]", "[1e999, 0]", 1),
	} {
		a := p.sendModels(sdk.ModelUpdate{Put: []sdk.Model{modelOf("m", bad)}})
		if a.Refused["m"] == "" || len(a.Using) != 0 {
			t.Errorf("%s: %+v", name, a)
		}
		p.expect(3, 2)
		if c := p.condition("Model"); c.Status != "False" || c.Reason != "PreviousVersionRunning" {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if a := p.sendModels(sdk.ModelUpdate{Put: []sdk.Model{modelOf("m", `{}`),
		modelOf("s", `{}`)}}); a.Refused["m"] == "" || a.Refused["s"] == "" {
		t.Errorf("both at once: %+v", a)
	}
	p.sendModels(sdk.ModelUpdate{Remove: []string{"s"}})
	p.expect(3, 0)
	p.all()
	p.expect(0, 0)
}

// Models of a previous control plane keep running until a new one has received its models. Notifications in parts are
// complete only at the end.
func TestModelsAreAdopted(t *testing.T) {
	const config = `{"model": "m", "shadow": "s"}`
	p := newTestControl(t, config)
	p.all(modelOf("m", document(1, "dis", 0)), modelOf("s", document(2, "dio", 3)))
	p = newTestControlOn(t, config, p.live.Maps)
	p.expect(1, 2)
	p.sendModels(sdk.ModelUpdate{Reset: true, Put: []sdk.Model{modelOf("s", document(3, "dio", 3))}})
	p.expect(1, 3)
	p.sendModels(sdk.ModelUpdate{Complete: true, Put: []sdk.Model{modelOf("m", document(1, "dis", 0))}})
	p.expect(1, 3)
	p = newTestControlOn(t, `{"model": "s"}`, p.live.Maps)
	p.all(modelOf("m", document(1, "dis", 0)), modelOf("s", document(3, "dio", 3)))
	p.expect(3, 0)
}

// Harmless classes are configured by name, and in the data plane before the model is evaluated.
func TestHarmlessClasses(t *testing.T) {
	p := newTestControl(t, `{"model": "m", "harmless": ["idle", "busy"], "hysteresis": {"raise": 0.75, "clear": 0.5}}`)
	if a := p.all(modelOf("m", document(1, "dis", 0))); !strings.Contains(a.Refused["m"], `"idle"`) {
		t.Errorf("%+v", a)
	}
	p.expect(0, 0)
	three := strings.NewReplacer("[1, 0]", "[1, 0, 0]", "[0, 1]", "[0, 1, 0]").Replace(document(1, "dis", 0, "busy",
		"flood", "idle"))
	if a := p.all(modelOf("m", three)); len(a.Using) != 1 {
		t.Fatalf("%+v", a)
	}
	var got uint64
	if err := p.live.Maps.Lookup(mapHarmless, uint32(model.Live), &got); err != nil || got != 0b101 {
		t.Errorf("%b (%v)", got, err)
	}
	values := p.config.Settings().Tunables
	if values["raise"] != int32(24576) || values["clear"] != int32(16384) {
		t.Errorf("%v", values)
	}
}

// A model that was trained with another window length runs, with a condition.
func TestDoubtfulModel(t *testing.T) {
	p := newTestControl(t, `{"model": "m", "window": "10s"}`)
	p.all(modelOf("m", document(1, "dis", 0)))
	if c := p.condition("Model"); c.Status != "True" || c.Reason != "WindowMismatch" ||
		!strings.Contains(c.Message, "5s") {
		t.Errorf("%+v", c)
	}
}

func nodeSource(n byte) source {
	return source{Addr: [16]byte{0: 0xfe, 1: 0x80, 15: n}, Ifindex: plantIfindex, Pan: 0xabcd}
}

func (p *testControl) block(s source, b block) {
	p.Helper()
	if err := p.live.Maps.Put(mapBlocks, s, b); err != nil {
		p.Fatal(err)
	}
	p.fuse.Blocked++
}

// Blocked sources are listed, and unblocked individually, by the operator, by timeout, and with their interface.
func TestBlockedAreFreed(t *testing.T) {
	p := newTestControl(t, `{"model": "m"}`)
	p.all(modelOf("m", document(1, "dis", 0)))
	now := sdk.Monotonic()
	gone := nodeSource(4)
	gone.Ifindex = 99
	p.block(nodeSource(1), block{Since: now, Until: now + uint64(time.Hour), Packets: 5, Dropped: 4, Version: 1, Class: 1,
		Score: 16384, Action: 3})
	p.block(nodeSource(2), block{Since: now, Action: 2})
	p.block(nodeSource(3), block{Since: now - 2, Until: now - 1, Action: 3})
	p.block(gone, block{Since: now, Action: 3})
	if err := p.sweep(); err != nil {
		t.Fatal(err)
	}
	all := get[[]Blocked](p, "/blocked")
	if len(all) != 2 || p.fuse.Blocked != 2 {
		t.Fatalf("%+v, %d counted", all, p.fuse.Blocked)
	}
	for _, b := range all {
		if b.Source == "fe80::1" {
			b.Since, b.Until = "", ""
			want := Blocked{Location: Location{"fe80::1", "web", "veth7", "0xabcd"}, Action: "drop", Packets: 5, Dropped: 4,
				Version: 1, Class: "attack", Score: 0.5}
			if b != want {
				t.Errorf("%+v, want %+v", b, want)
			}
		} else if b.Source != "fe80::2" || b.Action != "rateLimit" || b.Until != "" {
			t.Errorf("%+v", b)
		}
	}
	if status, text := p.ask("GET", "/nosuch", ""); status != 404 ||
		!strings.Contains(text, "known are sources, blocked") {
		t.Errorf("a route that is not there: %d %s", status, text)
	}
	if status, text := p.ask("DELETE", "/blocked/fe80::9", ""); status != 404 || !strings.Contains(text, "fe80::9") {
		t.Errorf("%d %s", status, text)
	}
	if status, text := p.ask("PUT", "/values/blocked/fe80::2", `{"value": "none"}`); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	if status, text := p.ask("DELETE", "/blocked/fe80::1", ""); status != 200 || !strings.Contains(text, `"freed":1`) {
		t.Errorf("%d %s", status, text)
	}
	if all := get[[]Blocked](p, "/blocked"); len(all) != 0 || p.fuse.Blocked != 0 {
		t.Errorf("%+v, %d counted", all, p.fuse.Blocked)
	}
}

// A tripped fuse is a condition; resetting it unblocks all sources.
func TestFuseIsMended(t *testing.T) {
	p := newTestControl(t, `{"model": "m", "allow": ["fe80::2"]}`)
	if c := p.condition("Fuse"); c.Status != "True" {
		t.Errorf("%+v", c)
	}
	p.block(nodeSource(1), block{Since: 1, Action: 3})
	p.block(nodeSource(2), block{Since: 1, Action: 3})
	if err := p.freeAllowed(); err != nil || p.fuse.Blocked != 1 {
		t.Errorf("%v, %d are left", err, p.fuse.Blocked)
	}
	p.running.fuse.blow(causeShare)
	if c := p.condition("Fuse"); c.Status != "False" || c.Reason != "Blown" ||
		!strings.Contains(c.Message, "sourceShare") || !strings.Contains(c.Message, "guard fuse=intact") {
		t.Errorf("%+v", c)
	}
	if err := p.Health(); err != nil {
		t.Errorf("a blown fuse is no illness: %v", err)
	}
	for path, body := range map[string]string{"/fuse": `{"state": "whole"}`, "/values/fuse": `{"value": "whole"}`,
		"/values/lamp": `{"value": "on"}`} {
		if status, text := p.ask("PUT", path, body); status != 400 && status != 404 {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	if status, text := p.ask("PUT", "/values/fuse", `{"value": "intact"}`); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	if r := get[FuseReport](p, "/fuse"); r.State != "intact" || r.Blocked != 0 || r.Cause != "" {
		t.Errorf("%+v", r)
	}
	if all := get[[]Blocked](p, "/blocked"); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

// Metrics have every counter once, and the running models.
func TestMeasure(t *testing.T) {
	p := newTestControl(t, `{"model": "m"}`)
	p.all(modelOf("m", document(7, "dis", 0)))
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		t.Fatal(err)
	}
	perCPU := make([]uint64, cpus)
	for i := range perCPU {
		perCPU[i] = 3
	}
	if err := p.live.Maps[mapCounts].Put(uint32(countPositive), perCPU); err != nil {
		t.Fatal(err)
	}
	samples, err := p.Collect()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, s := range samples {
		key := fmt.Sprint(s.Name, s.Labels)
		if _, twice := got[key]; twice || s.Help == "" {
			t.Errorf("%s: twice %v, help %q", key, twice, s.Help)
		}
		got[key] = s.Value
	}
	for key, want := range map[string]float64{
		"evaluations_totalmap[kind:positive]":                  float64(3 * cpus),
		"packets_totalmap[kind:dropped]":                       0,
		"agreement_totalmap[kind:only_shadow]":                 0,
		"model_infomap[kind:tree model:m role:live version:7]": 1,
		"fuse_blownmap[]":                                      0,
	} {
		if value, ok := got[key]; !ok || value != want {
			t.Errorf("%s: %v (%v), want %v", key, value, ok, want)
		}
	}
	if got := get[map[string]uint64](p, "/stats"); len(got) != 1 || got["positive"] != uint64(3*cpus) {
		t.Errorf("%v", got)
	}
}

func TestConfigErrors(t *testing.T) {
	for config, field := range map[string]string{
		`{"window": "10ms"}`:                    "window",
		`{"window": "0s"}`:                      "window",
		`{"extractor": "flow", "window": "0s"}`: "window",
		`{"extractor": "flow", "window": "0s", "evaluate": {"when": "packet"}, "sliding": true}`: "sliding",
		`{"hysteresis": {"hits": 4, "of": 3}}`:                                                   "hysteresis.hits",
		`{"hysteresis": {"raise": 0.5, "clear": 0.6}}`:                                           "hysteresis.clear",
		`{"rpl": {"repeats": "2m"}}`:                                                             "rpl.repeats",
		`{"action": {"for": "0s"}}`:                                                              "action.for",
		`{"action": {"do": "drop", "for": "-1s"}}`:                                               "action.for",
		`{"model": "m", "shadow": "m"}`:                                                          "shadow",
		`{"allow": ["192.0.2.1", "node-7"]}`:                                                     "allow[1]",
		`{"weather": "fine"}`:                                                                    "weather",
	} {
		_, err := Control().Compile(json.RawMessage(config))
		var wrong *sdk.ConfigError
		if !errors.As(err, &wrong) || wrong.Field != field {
			t.Errorf("%s: %v, want an error of %s", config, err, field)
		}
	}
}

// Both names of an action without an end are accepted, since stored configs have that of 0.1.
func TestUntilUnblocked(t *testing.T) {
	for _, name := range []string{"untilUnblocked", "untilTold"} {
		if _, err := Control().Compile(json.RawMessage(`{"action": {"for": "` + name + `"}}`)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The defaults of the config equal those of the data plane, and every constant exists there.
func TestConstants(t *testing.T) {
	spec := openPackage(t)
	for name, value := range compileConfig(t, `{}`).Settings().Constants {
		v := spec.Variables[name]
		if v == nil {
			t.Errorf("the data plane has no constant %s", name)
			continue
		}
		compiled := make([]byte, 8)
		raw := reflect.ValueOf(v).MethodByName("Size").Call(nil)[0].Uint()
		if err := v.Get(compiled[:raw]); err != nil {
			t.Fatal(err)
		}
		var got uint64
		for i := range raw {
			got |= uint64(compiled[i]) << (8 * i)
		}
		if want := number(value); got != want {
			t.Errorf("%s is %d, compiled with %d", name, want, got)
		}
	}
}

func number(v any) uint64 {
	switch v := reflect.ValueOf(v); {
	case v.CanInt():
		return uint64(v.Int())
	case v.CanUint():
		return v.Uint()
	case v.Bool():
		return 1
	}
	return 0
}

func TestPrefixes(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1": "::ffff:192.0.2.1/128", "192.0.2.77/24": "::ffff:192.0.2.0/120", "fe80::1": "fe80::1/128",
		"2001:db8::/32":           "2001:db8::/32",
		"00:12:4b:00:06:0d:9b:00": "fe80::212:4b00:60d:9b00/128",
	} {
		got, err := parsePrefix(text)
		if err != nil || got.String() != want {
			t.Errorf("%s: %v (%v), want %s", text, got, err, want)
		}
	}
}

func TestSourceNames(t *testing.T) {
	flow := source{Port: [2]byte{0x13, 0x88}, LocalPort: [2]byte{0, 80}, Proto: 6, Kind: 1}
	copy(flow.Addr[10:], []byte{0xff, 0xff, 192, 0, 2, 1})
	copy(flow.Local[10:], []byte{0xff, 0xff, 10, 0, 0, 5})
	six := source{Addr: [16]byte{0: 0x20, 1: 1, 15: 1}, Local: [16]byte{0: 0x20, 1: 1, 15: 2}, Proto: 89, Kind: 1}
	peer := source{Addr: flow.Addr, Kind: 1}
	for want, s := range map[string]source{
		"fe80::5": nodeSource(5), "tcp-192.0.2.1:5000-10.0.0.5:80": flow, "89-[2001::1]:0-[2001::2]:0": six,
		"192.0.2.1": peer,
	} {
		if got := s.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
