// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/benchtest"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

func TestMain(m *testing.M) { os.Exit(benchtest.Main(m)) }

func newExperiment(t *testing.T) *experiment {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	tools, err := compile(t.Context(), 0, false)
	if errors.As(err, new(*pkgs.ToolError)) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	e := &experiment{run: bench.NewRun(bench.Experiment{}, true, bench.MinRounds, nil, io.Discard), tools: tools,
		up: map[string]*contender{},
		lengths: lengths{ask: 10 * time.Millisecond, offer: 10 * time.Millisecond, cost: 10 * time.Millisecond,
			alongside: 50 * time.Millisecond, follow: 100 * time.Millisecond, cars: 100 * time.Millisecond, bisections: 1,
			tries: 1}}
	t.Cleanup(func() {
		if err := e.close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// openContender opens a config, or skips where it cannot be measured.
func openContender(t *testing.T, e *experiment, load, config string) *contender {
	t.Helper()
	c, err := e.contender(e.family(load), config)
	if errors.Is(err, bench.ErrNotBuilt) || errors.Is(err, bench.ErrLeftOut) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Every variant of every config answers every request correctly.
func TestAllAnswer(t *testing.T) {
	e := newExperiment(t)
	for _, load := range []string{"direct", "published", "routed", "coap", "tcp", "work", "direct6", "routed6"} {
		for _, config := range e.family(load).configs {
			if load == "published" && slices.Contains(udpConfigs, config) {
				continue // the same as direct
			}
			t.Run(load+"/"+config, func(t *testing.T) {
				c := openContender(t, e, load, config)
				c.steps = 1050
				for _, variant := range append([]string{c.sleeping()}, c.variants...) {
					err := c.serving(variant, func() error {
						a, err := c.client("ask", 4, 0, 100)
						if a.Sent != 400 || a.Answered != 400 || a.Wrong != 0 || !(a.P50 > 0) || a.P999 < a.P50 {
							t.Errorf("%s: %+v", variant, a)
						}
						return err
					})
					if err != nil {
						t.Errorf("%s: %v", variant, err)
					}
				}
			})
		}
	}
}

// answerBy runs a server with a function that returns the answers.
func answerBy(t *testing.T, c *contender, answer func(request []byte) [][]byte) {
	t.Helper()
	var socket *net.UDPConn
	err := c.place.server.Do(func() (err error) {
		socket, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.place.address, uint16(c.port()))))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	go func() {
		for buf := make([]byte, 2048); ; {
			n, from, err := socket.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			for _, a := range answer(buf[:n]) {
				_, _ = socket.WriteToUDPAddrPort(a, from)
			}
		}
	}()
}

// The client detects wrong, missing and additional answers.
func TestClientSees(t *testing.T) {
	e := newExperiment(t)
	right := []byte{3, 0, 0, 0, 120, 0, 0, 0}
	for name, tc := range map[string]struct {
		answer func([]byte) [][]byte
		bad    func(clientReport) bool
	}{
		"echo": {func(r []byte) [][]byte { return [][]byte{r} }, func(a clientReport) bool {
			return a.Wrong == 0 ||
				a.Wrong != a.Answered
		}},
		"value": {func([]byte) [][]byte { return [][]byte{{3, 0, 0, 0, 121, 0, 0, 0}} },
			func(a clientReport) bool { return a.Wrong == 0 }},
		"short": {func([]byte) [][]byte { return [][]byte{right[:7]} }, func(a clientReport) bool { return a.Wrong == 0 }},
		"silence": {func([]byte) [][]byte { return nil }, func(a clientReport) bool {
			return a.lost() != a.Sent ||
				a.Sent == 0
		}},
		"twice": {func([]byte) [][]byte { return [][]byte{right, right} },
			func(a clientReport) bool { return a.Answered <= a.Sent }},
		"as it is": {func([]byte) [][]byte { return [][]byte{right} }, func(a clientReport) bool {
			return a.Wrong+a.lost() != 0 ||
				a.Sent == 0
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := openPlace("direct", "kbrtest", e.tools)
			if err != nil {
				t.Fatal(err)
			}
			defer p.lab.Close()
			c := &contender{config: "test", protocol: "speed", place: p, tools: e.tools}
			answerBy(t, c, tc.answer)
			for tries := 1; ; tries++ { // on a busy machine answers may be too late
				a, err := c.client("offer", 2, 20*time.Millisecond, 2000)
				if err == nil && !tc.bad(a) {
					return
				}
				if err != nil || a.Wrong > 0 || tries == 10 {
					t.Fatalf("%+v, %v", a, err)
				}
			}
		})
	}
}

// Labs of all contenders can coexist.
func TestLabsAreApart(t *testing.T) {
	e, of := &experiment{}, map[string]string{}
	for _, load := range loads() {
		name, _, _ := strings.Cut(load, "/")
		f := e.family(name)
		for _, config := range append([]string{"dropped"}, f.configs...) {
			key, prefix := f.place+f.protocol+config, labPrefix(f, config)
			if other, taken := of[prefix]; taken && other != key {
				t.Errorf("%s and %s are both in %s", other, key, prefix)
			}
			of[prefix] = key
		}
	}
}

// Servers get the upper half of the CPUs, or the requested number if one is left for the client.
func TestDivide(t *testing.T) {
	for _, tc := range []struct {
		cpus, servers   int
		clients, others string
	}{{1, 0, "", ""}, {2, 0, "0", "1"}, {3, 0, "0", "1,2"}, {4, 0, "0,1", "2,3"}, {4, 1, "0,1,2", "3"},
		{4, 3, "0", "1,2,3"}, {4, 4, "", ""}, {4, -1, "", ""}, {2, 1, "0", "1"}} {
		clients, others, err := divide([]int{0, 1, 2, 3}[:tc.cpus], tc.servers)
		if list(clients) != tc.clients || list(others) != tc.others || (err == nil) != (tc.clients != "") {
			t.Errorf("%+v: %v, %v, %v", tc, clients, others, err)
		}
	}
}

// Dropped requests have a cost, and no answers.
func TestDroppedRequests(t *testing.T) {
	e := newExperiment(t)
	c := openContender(t, e, "direct", "dropped")
	// until the idle probes have run, which other tasks may delay
	for length := 10 * time.Millisecond; ; length *= 2 {
		a, err := c.client("cost", 2, length, costRate)
		if err != nil || a.Answered != 0 || a.Sent == 0 || length > 30*time.Second {
			t.Fatalf("%+v, %v", a, err)
		}
		if a.Taken > 0 && a.Spent > 0 {
			return
		}
	}
}

// The router steers packets to the servers' CPUs.
func TestRoutedIsSteered(t *testing.T) {
	e := newExperiment(t)
	c := openContender(t, e, "routed", "user")
	out, err := command(c.place.peer, "unshare", "--mount", "sh", "-c",
		"mount -t sysfs sysfs /sys && cat /sys/class/net/kbrrsu0/queues/rx-0/rps_cpus").CombinedOutput()
	want := fmt.Sprintf("%x\n", mask(e.tools.others))
	if err != nil || strings.TrimLeft(string(out), "0,") != want {
		t.Errorf("%q, want %q: %v", out, want, err)
	}
}

// A load of each kind reports its figures.
func TestMeasures(t *testing.T) {
	e := newExperiment(t)
	rtt := []string{"rtt p50", "rtt p99", "rtt p99.9", "rtt stddev", "rate p50"}
	means := []string{"thread_mean p50", "thread_mean mean", "thread_mean stddev", "thread_mean min", "thread_mean max"}
	busy := []string{"client_busy p50", "server_busy p50"}
	for _, tc := range []struct {
		load string
		n    int
		want []string
	}{
		{"direct", 4, append(slices.Clone(rtt), "lossfree_rate p50", "cpu p50")},
		{"published", 2, slices.Concat(rtt, means, busy, []string{"rtt p1", "rtt p25", "rtt p75", "memory p50"})},
		{"threads", 4, slices.Concat(rtt, means, busy, []string{"memory p50"})},
		{"until-loss", lossStep, []string{"lossfree_threads p50"}},
		{"offered", 5000, []string{"lost p50", "answered p50"}},
		{"tcp", 4, slices.Concat(rtt, means, busy, []string{"memory p50", "cpu p50", "answered_at_parting p50"})},
		{"direct6", 4, append(slices.Clone(rtt), "lossfree_rate p50", "cpu p50")},
		{"work", 100, slices.Concat([]string{"rtt p50", "rtt p99", "rate p50"}, means, busy, []string{"cpu p50",
			"bystander_rtt p50", "bystander_rtt p99", "bystander_lost p50"})},
		{"precision", 1000, []string{"off p50", "error mean", "error p99", "error max", "age mean", "age p99", "age max"}},
		{"setpoint", 2, []string{"new_after p50", "new_after p99", "old_until p50", "old_until p99", "set p50", "set p99",
			"stale sum", "rate p50", "set_points sum"}},
		{"priority", 1000, []string{"high_rtt p50", "high_rtt p99", "high_lost p50", "low_sent p50", "low_answered p50"}},
		{"energy", 1000, []string{"energy p50"}},
	} {
		t.Run(tc.load, func(t *testing.T) {
			samples, err := e.family(tc.load).measure(openContender(t, e, tc.load, "user"), tc.n)
			var got []string
			for _, s := range samples {
				got = append(got, s.Metric+" "+s.Stat)
			}
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("%v, %v; want %v", got, err, tc.want)
			}
		})
	}
}

// With one thread, a request's time is the whole time divided by the requests. With several, no thread takes longer
// than the whole time.
func TestThreadMeans(t *testing.T) {
	e := newExperiment(t)
	c := openContender(t, e, "direct", "user")
	const requests = 50
	for _, threads := range []int{1, 4} {
		var a clientReport
		err := c.serving(c.variant, func() (err error) { a, err = e.ask(c, "ask", threads, requests); return err })
		if err != nil || a.Answered != uint64(threads*requests) || len(a.ThreadMeans) != threads {
			t.Fatalf("%+v, %v", a, err)
		}
		whole := a.Seconds * 1e6 / requests
		if longest := slices.Max(a.ThreadMeans); longest > whole+0.01 || threads == 1 && longest < whole-0.01 {
			t.Errorf("%d threads: %v us, all in %v us a request", threads, a.ThreadMeans, whole)
		}
		values := map[string]float64{}
		for _, s := range threadMeans(a) {
			values[s.Stat] = s.Value
		}
		if values["min"] <= 0 || values["min"] > values["p50"] || values["p50"] > values["max"] {
			t.Errorf("%v", values)
		}
	}
}

// Missing answers for all threads, and wrong answers, invalidate a run.
func TestUnsound(t *testing.T) {
	e := newExperiment(t)
	if _, err := e.ask(openContender(t, e, "direct", "dropped"), "ask", 1, 1); err != nil {
		t.Fatal(err)
	}
	e.check(&contender{config: "x"}, clientReport{Sent: 2, Answered: 2, Wrong: 1})
	e.check(&contender{config: "x"}, clientReport{Sent: 2, Answered: 3})
	e.check(&contender{config: "x"}, clientReport{Sent: 2, Answered: 1})
	if got := e.run.Report().Unsound; len(got) != 3 {
		t.Errorf("%q", got)
	}
}

// The command reports all configs, without wrong answers.
func TestCommand(t *testing.T) {
	newExperiment(t)
	path := filepath.Join(t.TempDir(), "responder.json")
	cmd := bench.Command()
	cmd.SetOut(io.Discard)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{"responder", "--quick", "--loads", "threads/1", "--out", path})
	if err := cmd.Execute(); err != nil && !errors.Is(err, bench.ErrInvalid) {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var report bench.Report
	if err := json.NewDecoder(bytes.NewReader(data)).Decode(&report); err != nil {
		t.Fatal(err)
	}
	for _, why := range report.Unsound {
		if !strings.Contains(why, " lost ") { // a stalled machine may lose requests
			t.Error(why)
		}
	}
	for _, config := range udpConfigs {
		if c, ok := report.Find(config, "threads/1", "rtt", "p50"); !ok || !(c.Value > 0) ||
			len(c.Rounds) != bench.MinRounds {
			t.Errorf("%s: %+v", config, c)
		}
	}
}

// Limits that are computed for each request are exact; those of an interval are not, while cars arrive and leave.
func TestPrecision(t *testing.T) {
	e := newExperiment(t)
	for _, config := range precisionConfigs {
		t.Run(config, func(t *testing.T) {
			c := openContender(t, e, "precision", config)
			samples, err := e.measurePrecision(c, 1000)
			if err != nil {
				t.Fatal(err)
			}
			off, worst := samples[0].Value, samples[3].Value
			if exact := config == "user" || config == "kernel"; exact != (off == 0) || exact != (worst == 0) {
				t.Errorf("%v%% are off, by up to %v km/h: %v", off, worst, e.run.Report().Unsound)
			}
		})
	}
	if why := e.run.Report().Unsound; len(why) > 0 {
		t.Error(why)
	}
}

// Values that were set are answered, and no later request gets the previous value.
func TestSetPoints(t *testing.T) {
	e := newExperiment(t)
	for _, config := range setPointConfigs {
		t.Run(config, func(t *testing.T) {
			samples, err := e.measureSetPoints(openContender(t, e, "setpoint", config), 2)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range samples {
				if s.Metric == "stale" && s.Value > 0 || s.Metric == "set_points" && s.Value == 0 {
					t.Errorf("%+v", s)
				}
			}
		})
	}
	if why := e.run.Report().Unsound; len(why) > 0 {
		t.Error(why)
	}
}

func TestSetPointSamples(t *testing.T) {
	e := &experiment{run: bench.NewRun(bench.Experiment{}, true, bench.MinRounds, nil, io.Discard)}
	points := []point{{200, 0, 1000}, {201, 10_000, 12_000}, {202, 20_000, 22_000}, {203, 30_000, 32_000}}
	a := clientReport{Begin: 5_000, Heard: map[int]observation{200: {1, 12_000, 9_000}, 201: {11_000, 25_000, 23_000},
		202: {21_000, 22_000, 21_000}, 203: {33_000, 40_000, 39_000}}}
	got := map[string]float64{}
	for _, s := range e.setPointSamples(&contender{config: "put"}, a, points, true) {
		got[s.Metric+" "+s.Stat] = s.Value
	}
	// A request that was sent 1 us after 202 had been set was answered with 201.
	for name, want := range map[string]float64{"new_after p50": 1, "new_after p99": 3, "old_until p50": 2,
		"old_until p99": 5, "set p50": 2, "stale sum": 1, "set_points sum": 3} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
	// A number that was replaced before the next request counts as answered by the following number.
	delete(a.Heard, 202)
	if s := e.setPointSamples(&contender{config: "put"}, a, points, true); s[1].Value != 13 {
		t.Errorf("%+v", s)
	}
	delete(a.Heard, 203)
	e.setPointSamples(&contender{config: "put"}, a, points, true)
	if why := e.run.Report().Unsound; len(why) != 1 {
		t.Errorf("a number that was never answered: %q", why)
	}
}

// Requests of both priorities are answered, and counted separately.
func TestPriorities(t *testing.T) {
	e := newExperiment(t)
	for _, config := range priorityConfigs {
		t.Run(config, func(t *testing.T) {
			c := openContender(t, e, "priority", config)
			var a clientReport
			err := c.serving(c.sleeping(), func() error {
				return c.alongside("fifo", func() (err error) { a, err = e.offerAlongside(c, 1000, c.port()+1); return err })
			})
			if err != nil || a.Sent == 0 || a.lost() > 0 || a.BystanderSent == 0 || a.BystanderAnswered == 0 {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
}

func TestBusyCPUs(t *testing.T) {
	read := func(idle0, idle1 string) map[int]cpuTime {
		return readCPUs(fstest.MapFS{"proc/stat": {Data: []byte("cpu  9 9 9 9 9 9 9 9 0 0\n" +
			"cpu0 10 0 10 " + idle0 + " 0 0 0 0 0 0\ncpu1 10 0 10 " + idle1 + " 5 0 0 0 0 0\nintr 1 2\n")}})
	}
	tools := &tools{clients: []int{0}, others: []int{1}}
	before, after := read("100", "100"), read("150", "200")
	after[0] = cpuTime{after[0].idle, after[0].all + 150}
	if got := *tools.busySince(before, after); got != (busy{client: 75, server: 0}) {
		t.Errorf("%+v", got)
	}
}
