// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/sockprobe"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// fair is a kernel on which redirected sockets behave as others.
var fair = sdk.Kernel{Sockets: map[string]bool{"integrity": true, "spliceRedirected": true, "fionreadRedirected": true,
	"fionreadPassed": true, "waitAll": true, "urgent": true}}

// lacking returns a kernel without some behaviours.
func lacking(behaviours ...string) sdk.Kernel {
	k := sdk.Kernel{Sockets: map[string]bool{}}
	for name := range fair.Sockets {
		k.Sockets[name] = !slices.Contains(behaviours, name)
	}
	return k
}

// controlled is a data plane with its control plane.
type controlled struct {
	*plane
	control   sdk.Control
	a         *accelerator
	live      sdk.Live
	instances []sdk.Attachment
}

func governed(t testing.TB, config string) *controlled {
	t.Helper()
	c := &controlled{plane: load(t, configEntry{}), control: Control()}
	c.live = sdk.Live{Module: "accel", Maps: c.Maps, Kernel: fair,
		Attachments: func() []sdk.Attachment { return c.instances }}
	c.use(config)
	return c
}

// open opens the control plane's state of a config and makes it current.
func (c *controlled) open(config string) {
	c.t.Helper()
	c.a = sdktest.Open[*accelerator](c.t, sdktest.Compile[*compiled](c.t, c.control, config), c.live)
}

// use makes a config current.
func (c *controlled) use(config string) {
	c.t.Helper()
	c.open(config)
	if err := c.a.apply(); err != nil {
		c.t.Fatal(err)
	}
}

func (c *controlled) present() (e configEntry) {
	c.t.Helper()
	if err := c.Maps[mapConfig].Lookup(uint32(0), &e); err != nil {
		c.t.Fatal(err)
	}
	return e
}

// asks sends the data plane's request for a program's verdict.
func (c *controlled) asks(file fileKey, path string) {
	c.t.Helper()
	c.put(mapExecutables, file, executableEntry{Verdict: asked})
	if err := c.a.answer(eventOf(file, path)); err != nil {
		c.t.Fatal(err)
	}
}

// eventOf returns the data plane's event for a program that only root can change.
func eventOf(file fileKey, path string) *event {
	e := &event{File: file, PID: 10}
	names := strings.Split(strings.TrimPrefix(path, "/"), "/")
	slices.Reverse(names)
	for i, name := range names {
		copy(e.Names[i][:], name)
	}
	copy(e.Comm[:], "program")
	return e
}

func (c *controlled) verdict(file fileKey) uint32 {
	c.t.Helper()
	return entries[fileKey, executableEntry](c.plane, mapExecutables)[file].Verdict
}

func (c *controlled) condition(name string) sdk.Condition {
	c.t.Helper()
	all, err := c.a.Conditions()
	if err != nil {
		c.t.Fatal(err)
	}
	if at := slices.IndexFunc(all, func(x sdk.Condition) bool { return x.Type == name }); at >= 0 {
		return all[at]
	}
	return sdk.Condition{} // conditions that name programs or services are absent without any
}

// get queries a route of the module.
func (c *controlled) get(path string, to any) {
	c.t.Helper()
	w := httptest.NewRecorder()
	c.a.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	if err := json.Unmarshal(w.Body.Bytes(), to); w.Code != 200 || err != nil {
		c.t.Fatalf("%s: %d %s (%v)", path, w.Code, w.Body, err)
	}
}

func TestConfigReachesTheDataPlane(t *testing.T) {
	c := governed(t, `{"ports": {"only": [80]}, "visible": [{"ports": [22]}, {"ports": [23]}], "thresholds": {"turns": 3, "minTurns": 2}}`)
	if e := c.present(); e.Mode != modeAdaptive || e.Visibles != 2 || e.Warm != 3 || e.MinTurns != 32 || e.Retry != 64 {
		t.Errorf("%+v", e)
	}
	if v := entries[uint32, visibleEntry](c.plane, mapVisibles); v[1].First != 23 {
		t.Errorf("%+v", v)
	}
	if words := entries[uint32, uint64](c.plane, mapPorts); words[1] != 1<<16 || words[0] != 0 {
		t.Errorf("%#x, %#x", words[0], words[1])
	}
	for mode, want := range modes {
		if c.use(`{"mode": "` + mode + `"}`); c.present().Mode != want {
			t.Errorf("mode %s is %d", mode, c.present().Mode)
		}
	}
}

// Without a passed self-test no connection is accelerated.
func TestKernelsThatAreNotTrusted(t *testing.T) {
	for reason, kernel := range map[string]sdk.Kernel{"KernelNotTested": {}, "KernelUnsupported": lacking("integrity")} {
		c := governed(t, "")
		c.live.Kernel = kernel
		c.use(`{"mode": "redirect-all"}`)
		if got := c.condition("Accelerating"); c.present().Mode != modeOff || got.Status != "False" || got.Reason != reason {
			t.Errorf("mode %d, %+v", c.present().Mode, got)
		}
	}
}

// Namespaces of services are accelerated; those that another module watches only internally.
func TestMembers(t *testing.T) {
	c := governed(t, "")
	web := sdk.Attachment{Service: "web", NetnsCookie: 7, Chain: []sdk.ChainMember{{Module: "p", Package: "proxy"}}}
	db := sdk.Attachment{Service: "db", NetnsCookie: 8, Chain: []sdk.ChainMember{{Module: "fw", Package: "firewall"},
		{Module: "t", Package: "tunnel"}}}
	follow := func(instances ...sdk.Attachment) map[uint64]serviceEntry {
		c.instances = instances
		check(t, c.a.setMembers())
		return entries[uint64, serviceEntry](c.plane, mapMembers)
	}
	got := follow(web, db, sdk.Attachment{Cgroup: "/kubepods", CgroupID: 9})
	if len(got) != 2 || got[7] != (serviceEntry{ID: idOf("web")}) ||
		got[8] != (serviceEntry{ID: idOf("db"), Flags: within}) {
		t.Errorf("%+v", got)
	}
	if v := c.condition("VisibilityRequired"); v.Status != "True" || !strings.Contains(v.Message, "db (fw)") ||
		strings.Contains(v.Message, "web") {
		t.Errorf("%+v", v)
	}
	web.NetnsCookie = 70 // re-created
	if got = follow(web); len(got) != 1 || got[70].ID != idOf("web") {
		t.Errorf("%+v", got)
	}
	c.use(`{"past": []}`)
	if got = follow(web); got[70].Flags != within {
		t.Errorf("%+v", got)
	}
}

// The names in this package match those of package sockprobe.
func TestBehavioursHaveTheirNames(t *testing.T) {
	patient := sdk.Kernel{Sockets: map[string]bool{sockprobe.Interrupted: true}}
	a := &accelerator{config: configOf(t, ""), live: sdk.Live{Kernel: patient}}
	if v, _ := a.judge(&program{Path: "/usr/bin/curl"}); v != allowed {
		t.Errorf("%s is not what lets programs block in recv", sockprobe.Interrupted)
	}
	if !(&accelerator{}).trusts(sdk.Kernel{Sockets: map[string]bool{sockprobe.Integrity: true}}) {
		t.Errorf("%s is not what is trusted", sockprobe.Integrity)
	}
}

// False conditions are problems of the node: a module that accelerates everything it may has none.
func TestHealthyHasNoProblem(t *testing.T) {
	c := governed(t, "")
	c.asks(fileKey{Inode: 4}, "/usr/bin/curl")
	all, err := c.a.Conditions()
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range all {
		if one.Status == "False" {
			t.Errorf("%+v", one)
		}
	}
}

// Programs get the verdict of the config, and the report explains why some are excluded, and what to do.
func TestPrograms(t *testing.T) {
	c := governed(t, "")
	server, other := fileKey{Inode: 1, Device: 2, Generation: 3}, fileKey{Inode: 4}
	c.asks(server, "/opt/server")
	c.asks(other, "/usr/bin/curl")
	if c.verdict(server) != unsafe || c.verdict(other) != safe {
		t.Errorf("verdicts %d and %d", c.verdict(server), c.verdict(other))
	}
	var report []ExecutableReport
	c.get("/executables", &report)
	if len(report) != 2 || report[0].Verdict != "kept out" || report[1].Verdict != "safe" ||
		!strings.Contains(report[0].Why, "list it in programs.allow") {
		t.Errorf("%+v", report)
	}
	if v := c.condition("ProgramsExcluded"); v.Status != "True" ||
		!strings.Contains(v.Message, "/opt/server (it is not known to be safe") {
		t.Errorf("%+v", v)
	}
	// The file was moved, and its verdict is requested again.
	if c.asks(server, "/usr/local/bin/node"); c.verdict(server) != safe {
		t.Errorf("verdict %d", c.verdict(server))
	}
	c.use(`{"programs": {"allow": ["/usr/local/bin/node"], "deny": ["curl"]}}`)
	if c.verdict(server) != allowed || c.verdict(other) != unsafe {
		t.Errorf("verdicts %d and %d", c.verdict(server), c.verdict(other))
	}
}

// The observed behaviour of a program takes precedence over its static verdict, and the config over both.
func TestCaught(t *testing.T) {
	c := governed(t, "")
	file := fileKey{Inode: 1}
	c.asks(file, "/usr/bin/curl")
	c.put(mapExecutables, file, executableEntry{Verdict: caught, Reason: uint32(slices.Index(reasons[:], "urgent"))})
	c.use(`{"mode": "redirect-all"}`)
	var report []ExecutableReport
	if c.get("/executables", &report); c.verdict(file) != caught || report[0].Verdict != "kept out" ||
		!strings.Contains(report[0].Why, "urgent data") {
		t.Errorf("verdict %d, %+v", c.verdict(file), report)
	}
	if c.use(`{"programs": {"allow": ["/usr/bin/curl"]}}`); c.verdict(file) != allowed {
		t.Errorf("verdict %d", c.verdict(file))
	}
}

// The data plane's table keeps room for new programs.
func TestForgetsTheOldest(t *testing.T) {
	c := governed(t, "")
	for i := range uint64(maxPrograms + 10) {
		c.asks(fileKey{Inode: i + 1}, "/server")
	}
	if n := len(entries[fileKey, executableEntry](c.plane, mapExecutables)); n != maxPrograms ||
		len(c.a.memory.known) != maxPrograms {
		t.Errorf("%d verdicts, %d known", n, len(c.a.memory.known))
	}
}

// Learned verdicts survive the control plane until the node reboots.
func TestMemory(t *testing.T) {
	t.Setenv("STATE_DIRECTORY", t.TempDir())
	c := governed(t, "")
	c.instances = []sdk.Attachment{{Service: "web", NetnsCookie: 7}}
	file := fileKey{Inode: 1, Generation: 5}
	c.use("")
	c.asks(file, "/usr/bin/curl")
	c.a.memory.save()
	next := newMemory("accel")
	next.load(map[fileKey]executableEntry{file: {Verdict: safe}})
	if p := next.known[file]; p == nil || p.Path != "/usr/bin/curl" || next.name(idOf("web")) != "web" {
		t.Errorf("%+v, %+v", p, next.services)
	}
	next = newMemory("accel")
	if next.load(nil); len(next.known) != 0 {
		t.Errorf("%+v", next.known)
	}
}

// Two modules of the package store verdicts separately.
func TestMemoryOfTwoModules(t *testing.T) {
	t.Setenv("STATE_DIRECTORY", t.TempDir())
	one, other := governed(t, ""), governed(t, "")
	other.control = one.control
	other.live.Module = "other"
	for i, c := range []*controlled{one, other} {
		c.use("")
		c.asks(fileKey{Inode: uint64(i)}, "/"+c.live.Module)
	}
	for _, c := range []*controlled{one, other} {
		c.a.memory.save()
	}
	one.control = Control()
	other.control = one.control
	for i, c := range []*controlled{one, other} {
		var report []ExecutableReport
		c.use("")
		if c.get("/executables", &report); len(report) != 1 || report[0].Path != "/"+c.live.Module ||
			c.verdict(fileKey{Inode: uint64(i)}) != unsafe {
			t.Errorf("module %s: %+v", c.live.Module, report)
		}
	}
}

// Verdicts of programs that only the data plane knows are requested again, since the config may deny them. Files of
// Kerb 0.1.0 contain none.
func TestForgottenPrograms(t *testing.T) {
	t.Setenv("STATE_DIRECTORY", t.TempDir())
	c, file := governed(t, ""), fileKey{Inode: 1}
	older := `{"Programs": [{"File": {"Inode": 1, "Device": 0, "Generation": 0}, "Facts": {"path": "/usr/bin/curl"}}],
		"Services": {}}`
	check(t, os.WriteFile(c.a.memory.file(), []byte(older), 0o600))
	c.put(mapExecutables, file, executableEntry{Verdict: safe})
	c.use(`{"programs": {"deny": ["/server"]}}`)
	if got, known := entries[fileKey, executableEntry](c.plane, mapExecutables)[file]; known {
		t.Errorf("%+v", got)
	}
}

// Services come and go: counters of removed services do not fill the tables.
func TestGoneServices(t *testing.T) {
	c := governed(t, "")
	for i := range uint32(3000) {
		c.put(mapCounts, routeKey{1000 + i, unknownService}, countsEntry{Offered: 1})
		c.put(mapShares, 1000+i, i%2)
		c.a.memory.serve(fmt.Sprint("gone", i))
	}
	web := idOf("web")
	for _, route := range []routeKey{{theNode, unknownService}, {web, theNode}, {1000, web}} {
		n := countsEntry{Offered: 1}
		n.Refused[reasonFull] = 1
		c.put(mapCounts, route, n)
	}
	c.instances = []sdk.Attachment{{Service: "web", NetnsCookie: 7}}
	check(t, c.a.setMembers())
	if left := entries[routeKey, countsEntry](c.plane, mapCounts); len(left) != 2 ||
		left[routeKey{web, theNode}].Offered != 1 {
		t.Errorf("%d routes", len(left))
	}
	if left := entries[uint32, uint32](c.plane, mapShares); len(left) != 1500 || left[1001] != 1 {
		t.Errorf("%d shares", len(left))
	}
	if n := len(c.a.memory.services); n != 1 {
		t.Errorf("%d names", n)
	}
	// counters since this config
	if got := c.condition("WithinTableLimits"); got.Status != "False" || !strings.HasPrefix(got.Message, "2 ") {
		t.Errorf("%+v", got)
	}
	c.use("")
	if got := c.condition("WithinTableLimits"); got.Status != "True" {
		t.Errorf("%+v", got)
	}
}

func TestReports(t *testing.T) {
	c := governed(t, "")
	c.instances = []sdk.Attachment{{Service: "web", NetnsCookie: 7}, {Service: "db", NetnsCookie: 8}}
	check(t, c.a.setMembers())
	n := countsEntry{Offered: 5, Paired: 4, Accelerated: 3, Left: 1, Messages: 100, Bytes: 2000}
	n.Refused[reasonFull], n.Refused[slices.Index(reasons[:], "stream")], n.Refused[reasonClosed] = 2, 1, 4
	c.put(mapCounts, routeKey{idOf("web"), idOf("db")}, n)
	c.put(mapCounts, routeKey{theNode, unknownService}, countsEntry{Offered: 1})
	c.put(mapCounts, routeKey{12345, 54321}, countsEntry{Offered: 1})
	c.put(mapCounts, routeKey{12345, 54322}, countsEntry{Offered: 1})
	var pairs []PairReport
	c.get("/pairs", &pairs)
	if len(pairs) != 3 || pairs[0].Client != "(gone)" || pairs[0].Offered != 2 || pairs[1].Client != "(node)" ||
		pairs[1].Server != "(unknown)" {
		t.Errorf("%+v", pairs)
	}
	if p := pairs[2]; p.Client != "web" || p.Server != "db" || p.Bytes != 2000 ||
		fmt.Sprint(p.Refused) != "map[full:2 stream:1]" {
		t.Errorf("%+v", p)
	}
	var refused []RefusedReport
	if c.get("/refused", &refused); len(refused) != 2 || refused[1].Reason != "stream" || refused[1].Meaning == "" {
		t.Errorf("%+v", refused)
	}
	if v := c.condition("WithinTableLimits"); v.Status != "False" || !strings.HasPrefix(v.Message, "2 connections") {
		t.Errorf("%+v", v)
	}
	c.use("") // counts from here
	if v := c.condition("WithinTableLimits"); v.Status != "True" {
		t.Errorf("%+v", v)
	}
	samples, err := c.a.Collect()
	check(t, err)
	if !slices.ContainsFunc(samples, func(s sdk.Sample) bool {
		return s.Name == "bytes_total" && s.Labels["client"] == "web" && s.Value == 2000
	}) {
		t.Errorf("%+v", samples)
	}
}

// Every reason of the data plane has an explanation.
func TestReasonsAreExplained(t *testing.T) {
	if name := (&accelerator{}).NoteName("plain", uint64(len(reasons))); name != "" {
		t.Errorf("an unknown reason is called %q", name)
	}
	for i, reason := range reasons {
		if _, ok := explanations[reason]; i > 0 && i != reasonClosed && !ok {
			t.Errorf("%s is not explained", reason)
		}
	}
}

// End to end on this kernel: this unknown program is excluded by default, and accelerated if the config allows it.
func TestLive(t *testing.T) {
	c := governed(t, "")
	result, err := sockprobe.Run(t.Context())
	check(t, err)
	c.live.Kernel = sdk.Kernel{Sockets: result.ByName()}
	c.enter(chain.All)
	running := c.run("")
	wait.Until(t, "the mode is set", func() bool { return c.present().Mode == modeAdaptive })
	c.connect(t)
	wait.Until(t, "this program is excluded", func() bool { return c.condition("ProgramsExcluded").Status == "True" })
	c.plain(c.connect(t))
	if c.refused("executable") == 0 {
		t.Errorf("%+v", c.counts())
	}
	running()
	running = c.run(`{"programs": {"allow": ["` + programPath(t) + `"]}}`)
	defer running()
	wait.Until(t, "this program is allowed", func() bool {
		for _, e := range entries[fileKey, executableEntry](c.plane, mapExecutables) {
			return e.Verdict == allowed
		}
		return false
	})
	c.warm(c.connect(t))
}

// run runs the control plane until the returned function is called.
func (c *controlled) run(config string) (end func()) {
	c.t.Helper()
	c.open(config)
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.a.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// A file that was overwritten in place, as compilers do, is another program.
func TestRewrittenProgramsAreJudgedAgain(t *testing.T) {
	p := accelerate(t, usual)
	p.warm(p.connect(t))
	path, err := os.Executable()
	check(t, err)
	check(t, os.Chtimes(path, time.Time{}, time.Now()))
	p.plain(p.connect(t))
	if p.refused("unexamined") == 0 || len(entries[fileKey, executableEntry](p, mapExecutables)) != 2 {
		t.Errorf("%+v", p.counts())
	}
}

// A connection that was stopped because of its program does not count as a short connection.
func TestStoppedConnectionsTeachNothing(t *testing.T) {
	config := usual
	config.MinTurns = 16 * 4
	p := accelerate(t, config)
	l := p.listen(t)
	first := p.connectTo(t, l)
	p.judge(asked, allowed)
	first.turn(100)
	first.close()
	p.judge(allowed, asked)
	p.warm(p.connectTo(t, l))
	if p.refused("short") != 0 || p.refused("unexamined") != 1 {
		t.Errorf("%+v", p.counts())
	}
}
