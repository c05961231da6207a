// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/sdk"
)

// build compiles a copy of an example, and returns it with its directory.
func build(t *testing.T, name string) (*pkgs.Package, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(name)); err != nil {
		t.Fatal(err)
	}
	return compile(t, dir), dir
}

func compile(t *testing.T, dir string) *pkgs.Package {
	t.Helper()
	if err := pkgs.Build(t.Context(), dir, pkgs.Options{Out: t.Output()}); err != nil {
		t.Fatal(err)
	}
	p, err := pkgs.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.CheckMemory("", nil); err != nil {
		t.Error(err)
	}
	return p
}

// load links a package without other modules, for one direction.
func load(t *testing.T, p *pkgs.Package, side chain.Side, settings sdk.Settings,
	fill func(sdk.Maps) error) *dataplane.Loaded {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	l, err := dataplane.Load(side, chain.Egress, dataplane.Module{Name: p.Name, ID: "0123456789", Frags: p.Frags,
		Settings: settings, Fill: fill,
		Spec: func(h chain.Hook) (*ebpf.CollectionSpec, error) { return p.Spec(string(h)) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

var sides = []chain.Side{chain.OnXDP, chain.OnTCIngress}

func run(t *testing.T, l *dataplane.Loaded, frame []byte, times int) {
	t.Helper()
	for range times {
		if _, err := l.Program.Run(&ebpf.RunOptions{Data: frame}); err != nil {
			t.Fatal(err)
		}
	}
}

// udp4 returns a datagram from 10.0.0.7.
func udp4(port uint16) []byte {
	f := make([]byte, 60)
	f[12], f[14], f[17], f[23], f[39] = 0x08, 0x45, 46, 17, 26
	copy(f[26:], []byte{10, 0, 0, 7})
	binary.BigEndian.PutUint16(f[36:], port)
	return f
}

// tcp6 returns a segment from fd00::7.
func tcp6(port uint16) []byte {
	f := make([]byte, 74)
	f[12], f[13], f[14], f[19], f[20], f[66] = 0x86, 0xdd, 0x60, 20, 6, 5<<4
	f[22], f[37] = 0xfd, 7
	binary.BigEndian.PutUint16(f[56:], port)
	return f
}

type port struct {
	Protocol string
	Port     int
	Packets  uint64
	Bytes    uint64
}

type topAnswer struct{ Ports []port }

type event struct {
	Time     uint64
	Protocol string
	Port     int
	Source   string
	Bytes    int
}

type eventsAnswer struct {
	Read   int
	Events []event
}

const mapSet, watchConfig = "b71a0a7ce1", `{"watch": [53, 443], "keep": 1000}`

// startTopports loads topports and starts its control plane.
func startTopports(t *testing.T, side chain.Side) (*process, *dataplane.Loaded) {
	t.Helper()
	p, dir := build(t, "topports")
	pr := startProcess(t, p, dir)
	var settings sdk.Settings
	pr.must("compile", sdk.CompileRequest{Config: json.RawMessage(watchConfig)}, &settings)
	if settings.MaxEntries["watched"] != 2 {
		t.Errorf("settings %+v", settings)
	}
	l := load(t, p, side, settings, pr.fill(mapSet, watchConfig))
	pr.must("start", request(mapSet, watchConfig), nil)
	return pr, l
}

func TestTopports(t *testing.T) {
	for _, side := range sides {
		t.Run(string(side), func(t *testing.T) {
			pr, l := startTopports(t, side)
			run(t, l, udp4(53), 5)
			run(t, l, tcp6(443), 3)
			run(t, l, udp4(9), 7)
			var top topAnswer
			pr.call("GET", "/top?n=2", nil, &top)
			if diff := cmp.Diff(topAnswer{[]port{{"udp", 9, 7, 420}, {"udp", 53, 5, 300}}}, top); diff != "" {
				t.Error(diff)
			}
			got := pr.waitForEvents(8)
			if first, last := got.Events[0], got.Events[7]; first.Source != "10.0.0.7" || first.Port != 53 ||
				first.Protocol != "udp" ||
				first.Bytes != 60 || first.Time == 0 || last.Source != "fd00::7" || last.Port != 443 || last.Protocol != "tcp" {
				t.Errorf("%+v", got.Events)
			}
			var samples []sdk.Sample
			if status := pr.call("GET", sdk.PathPrefix+"metrics", nil, &samples); status != 200 || len(samples) != 2 ||
				samples[0].Value != 3 || samples[1].Value != 8 || !samples[1].Counter {
				t.Errorf("status %d, %+v", status, samples)
			}
			if status := pr.call("GET", sdk.PathPrefix+"health", nil, nil); status != 200 {
				t.Errorf("health: %d", status)
			}
		})
	}
}

// waitForEvents polls until n events have been read.
func (p *process) waitForEvents(n int) eventsAnswer {
	p.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		var got eventsAnswer
		p.call("GET", "/events?n=10000", nil, &got)
		if got.Read >= n {
			return got
		}
		if time.Now().After(end) {
			p.t.Fatalf("%d events were read, want %d", got.Read, n)
		}
	}
}

// The ring wraps around several times; every event is read, in order.
func TestTopportsReadsAroundTheRing(t *testing.T) {
	pr, l := startTopports(t, chain.OnTCIngress)
	const packets, each = 20000, 1000 // events of 56 bytes in a ring of 262144
	for i := range packets / each {
		run(t, l, udp4(53), each)
		pr.waitForEvents((i + 1) * each)
	}
	got := pr.waitForEvents(packets)
	for i, e := range got.Events {
		if e.Port != 53 || e.Source != "10.0.0.7" || i > 0 && e.Time < got.Events[i-1].Time {
			t.Fatalf("event %d: %+v", i, e)
		}
	}
	sent, lost, ok, err := dataplane.Events(l.Maps["topports"])
	if err != nil || !ok || sent != packets || lost != 0 || got.Read != packets || len(got.Events) != 1000 {
		t.Errorf("%d sent, %d lost (%v), %d read, %d kept", sent, lost, err, got.Read, len(got.Events))
	}
}

// The next map set has new watched ports and the same ring: its reader continues where the previous one stopped.
func TestTopportsChangesMapSet(t *testing.T) {
	pr, l := startTopports(t, chain.OnTCIngress)
	run(t, l, udp4(53), 2)
	pr.waitForEvents(2)
	if err := pr.send("another", l.Maps["topports"]); err != nil {
		t.Fatal(err)
	}
	pr.must("start", request("another", `{"keep": 3}`), nil)
	pr.must("drop", sdk.MapSetRequest{MapSet: mapSet}, nil)
	run(t, l, udp4(53), 2)
	if got := pr.waitForEvents(4); got.Read != 4 || len(got.Events) != 3 {
		t.Errorf("%+v", got)
	}
	var top topAnswer
	if pr.call("GET", "/top", nil, &top); len(top.Ports) != 1 || top.Ports[0].Packets != 4 {
		t.Errorf("%+v", top)
	}
}

func TestTopportsRefuses(t *testing.T) {
	p, dir := build(t, "topports")
	pr := startProcess(t, p, dir)
	var problem sdk.Problem
	status := pr.call("POST", sdk.PathPrefix+"compile",
		sdk.CompileRequest{Config: json.RawMessage(`{"watch": [80, 53, 80]}`)}, &problem)
	if want := (sdk.Problem{Field: "watch[2]", Reason: "port 80 is there already"}); status != 422 || problem != want {
		t.Errorf("%d %+v", status, problem)
	}
	for path, want := range map[string]int{"/nothing": 404, "/top?n=0": 400, "/top?n=x": 400,
		sdk.PathPrefix + "attached": 404} {
		if status := pr.call("GET", path, nil, &problem); status != want || problem.Reason == "" {
			t.Errorf("%s: %d %+v, want %d", path, status, problem, want)
		}
	}
	if status := pr.call("POST", sdk.PathPrefix+"attached", sdk.Attachment{}, nil); status != 404 {
		t.Errorf("attached: %d", status)
	}
}

// A body of unknown length is rejected, and not parsed as the next request.
func TestTopportsRefusesChunks(t *testing.T) {
	p, dir := build(t, "topports")
	pr := startProcess(t, p, dir)
	for range 3 {
		res, err := pr.client.Post("http://control/top", "application/json",
			io.MultiReader(strings.NewReader("{}"), strings.NewReader(" ")))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != 411 {
			t.Errorf("status %d", res.StatusCode)
		}
		if status := pr.call("GET", sdk.PathPrefix+"health", nil, nil); status != 200 {
			t.Errorf("health after it: %d", status)
		}
	}
}

type packetsAnswer struct{ Packets []port }

// The skeleton of `kerb package new --control python` works unchanged.
func TestPythonSkeleton(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sample")
	if err := pkgs.New(dir, "sample", pkgs.NewWatch, pkgs.NewWithPython); err != nil {
		t.Fatal(err)
	}
	p := compile(t, dir)
	pr := startProcess(t, p, dir)
	const config = `{"ports": [53, 9999], "drop": true}`
	var settings sdk.Settings
	pr.must("compile", sdk.CompileRequest{Config: json.RawMessage(config)}, &settings)
	l := load(t, p, chain.OnXDP, settings, pr.fill(mapSet, config))
	pr.must("start", request(mapSet, config), nil)
	run(t, l, udp4(53), 3)
	run(t, l, udp4(54), 2)
	var got packetsAnswer
	pr.call("GET", "/packets", nil, &got)
	if diff := cmp.Diff(packetsAnswer{[]port{{Port: 53, Packets: 3}}}, got); diff != "" {
		t.Error(diff)
	}
	if drops, err := l.Drops("sample"); err != nil || drops[32] != 3 {
		t.Errorf("drops %v, %v", drops, err)
	}
	var samples []sdk.Sample
	pr.call("GET", sdk.PathPrefix+"metrics", nil, &samples)
	if len(samples) != 1 || samples[0].Value != 3 || samples[0].Labels["port"] != "53" {
		t.Errorf("%+v", samples)
	}
	var problem sdk.Problem
	status := pr.call("POST", sdk.PathPrefix+"compile",
		sdk.CompileRequest{Config: json.RawMessage(`{"ports": [1, 1], "drop": false}`)}, &problem)
	if status != 422 || problem.Field != "ports[1]" {
		t.Errorf("%d %+v", status, problem)
	}
	if status := pr.call("GET", sdk.PathPrefix+"health", nil, nil); status != 404 {
		t.Errorf("health, of which it says nothing: %d", status)
	}
}
