// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/benchtest"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

func TestMain(m *testing.M) {
	// installed by scripts/setup
	if envoy, _ := filepath.Glob("../../out/envoy/lib/python3*/site-packages/envoy/_bin"); len(envoy) > 0 {
		dir, _ := filepath.Abs(envoy[0])
		os.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	}
	code := benchtest.Main(m)
	if tools, err := compiled(); err == nil {
		tools.Close()
	}
	os.Exit(code)
}

// compiled returns the programs, compiled once for all tests.
var compiled = sync.OnceValues(func() (*tools, error) { return compile(context.Background(), "one") })

func newExperiment(t *testing.T, where string) *experiment {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	tools, err := compiled()
	if errors.As(err, new(*pkgs.ToolError)) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	short := 10 * time.Millisecond
	e := newRun()
	e.run = bench.NewRun(bench.Experiment{}, true, bench.MinRounds, nil, io.Discard)
	e.where, e.proxy, e.tools = where, "haproxy", tools
	e.lengths = lengths{trip: short, stream: short, requests: short, warm: time.Millisecond, file: 1 << 20, held: 100}
	t.Cleanup(func() {
		if err := e.closePlace(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// measure measures one round of a workload, or skips the test if it is not available.
func measure(t *testing.T, e *experiment, config, name string) []bench.Sample {
	t.Helper()
	w := e.workload(name)
	c, err := e.contender(t.Context(), config)
	var s *serving
	if err == nil {
		s, err = c.serve(t.Context(), w)
	}
	if errors.Is(err, bench.ErrLeftOut) || errors.Is(err, bench.ErrNotBuilt) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	samples, err := s.round(t.Context())
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	return samples
}

// figuresOf returns the metrics that a workload must report.
func figuresOf(name string) []string {
	switch kind, _, _ := strings.Cut(name, "-"); kind {
	case "echo":
		return []string{"latency p1", "latency p25", "latency p50", "latency mean", "latency p75", "latency p99",
			"latency p99.9", "jitter p50", "rate p50", "cpu_op p50", "memory p50"}
	case "stream", "file":
		return []string{"throughput p50", "fct p50", "cpu_byte p50", "memory p50"}
	case "redis":
		return []string{"latency mean", "latency p50", "latency p99", "rate p50", "cpu_op p50", "memory p50"}
	case "http":
		return []string{"latency p50", "latency p99", "jitter p50", "rate p50", "cpu_op p50", "memory p50"}
	case "rare":
		return []string{"latency p50", "latency p99", "jitter p50", "memory p50"}
	}
	return []string{"connect p50", "memory p50", "memory_idle p50"}
}

func checkFigures(t *testing.T, name string, samples []bench.Sample) {
	t.Helper()
	var got []string
	for _, s := range samples {
		got = append(got, s.Metric+" "+s.Stat)
		// other programs may release memory, and one round trip has no deviation
		if !(s.Value > 0) && !strings.HasPrefix(s.Metric, "memory") && s.Metric != "jitter" {
			t.Errorf("%s: %s %s is %v", name, s.Metric, s.Stat, s.Value)
		}
	}
	if want := figuresOf(name); !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", name, got, want)
	}
}

// All workloads run over IPv6, too.
func TestIPv6(t *testing.T) {
	e := newExperiment(t, "proxy")
	e.family = "6"
	for _, name := range []string{"echo-24", "redis-1", "http"} {
		checkFigures(t, name, measure(t, e, "plain", name))
	}
}

// Every workload reports its metrics, over TCP and, where possible, over AF_UNIX.
func TestWorkloads(t *testing.T) {
	e := newExperiment(t, "loopback")
	for _, w := range workloads {
		t.Run(w.name, func(t *testing.T) {
			checkFigures(t, w.name, measure(t, e, "plain", w.name))
			if w.unix && !strings.HasPrefix(w.name, "redis") {
				checkFigures(t, w.name, measure(t, e, "unix", w.name))
			}
		})
	}
	checkFigures(t, "redis-1", measure(t, e, "unix", "redis-1"))
}

// With the accelerator, pings are redirected; a stream stays on TCP, unless everything is redirected.
func TestKerb(t *testing.T) {
	for config, accelerated := range map[string]map[string]float64{
		"kerb":         {"echo-24": 1, "stream-64": 0},
		"redirect-all": {"stream-64": 1},
	} {
		t.Run(config, func(t *testing.T) {
			e := newExperiment(t, "veth")
			for name, want := range accelerated {
				var got bench.Sample
				// a busy machine may preempt a client within a request, which ends the acceleration of its connection
				for range 3 {
					samples := measure(t, e, config, name)
					if got = samples[len(samples)-1]; got.Metric == "accelerated" && got.Value == want {
						break
					}
				}
				if got.Metric != "accelerated" || got.Value != want {
					t.Errorf("%s: %+v, want %v accelerated", name, got, want)
				}
			}
		})
	}
}

// The client reaches the server at every place.
func TestPlaces(t *testing.T) {
	for _, where := range places[1:] {
		for _, proxy := range proxyNames() {
			t.Run(where+"/"+proxy, func(t *testing.T) {
				// Envoy starts slowly: one place is enough.
				if where == "veth" && proxy != "haproxy" || where == "proxy" && proxy == "envoy" {
					t.Skip("there is no proxy, or it is tried alongside the services")
				}
				e := newExperiment(t, where)
				e.proxy = proxy
				for _, name := range []string{"echo-24", "stream-1K"} {
					checkFigures(t, name, measure(t, e, "plain", name))
					if where != "veth" {
						checkFigures(t, name, measure(t, e, "unix", name))
					}
				}
			})
		}
	}
}

// A server with wrong replies, or one that truncates a stream, invalidates the run.
func TestClientSees(t *testing.T) {
	e := newExperiment(t, "loopback")
	c, err := e.contender(t.Context(), "plain")
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		serve   func(net.Conn)
		measure string
		says    string
	}{
		"as it is": {func(c net.Conn) { io.Copy(c, c) }, "echo-24", ""},
		"spoilt": {func(c net.Conn) {
			for message := make([]byte, 24); ; {
				if _, err := io.ReadFull(c, message); err != nil {
					return
				}
				message[23] ^= 1
				c.Write(message)
			}
		}, "echo-24", "wrong answer"},
		"gone":  {func(c net.Conn) { c.Close() }, "echo-24", "ping"},
		"short": {func(c net.Conn) { c.Write([]byte{7, 0, 0, 0, 0, 0, 0, 0}); io.Copy(io.Discard, c) }, "stream-1K", "7 of"},
	} {
		t.Run(name, func(t *testing.T) {
			w := e.workload(tc.measure)
			s := &serving{contender: c, w: w, length: e.lengths}
			serveBy(t, s, tc.serve)
			_, err := s.round(t.Context())
			if tc.says == "" && err != nil || tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("%v, want %q", err, tc.says)
			}
		})
	}
}

// serveBy replaces the server by a function in this process.
func serveBy(t *testing.T, s *serving, serve func(net.Conn)) {
	t.Helper()
	var l net.Listener
	err := s.place.server.Do(func() (err error) {
		l, err = net.Listen("tcp", string(s.place.fromWithin(s.listen())))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); serve(conn) }()
		}
	}()
}

// A server that exits during the run invalidates the figures, even if no further load needs it.
func TestServerThatEnds(t *testing.T) {
	e := newExperiment(t, "loopback")
	e.run.Configs = configs[:1]
	e.workloads = []workload{{name: "ends", port: firstPort,
		server: func(s *serving) ([]string, error) {
			const untilOver = `"$@" & until [ -e over ]; do sleep 0.01; done; kill $!; exit 7`
			return append([]string{"sh", "-c", untilOver, "sh", s.tools.Path("server"), "echo", "24"}, s.listen().words()...),
				nil
		},
		measure: func(_ context.Context, s *serving) ([]bench.Sample, error) {
			if err := os.WriteFile(filepath.Join(s.dir, "over"), nil, 0o600); err != nil {
				return nil, err
			}
			s.process.exit <- <-s.process.exit
			return []bench.Sample{{Metric: "rate", Stat: "p50", Unit: "1/s", Value: 1}}, nil
		}}}
	if err := e.runLoad(t.Context(), "loopback/ends"); err == nil || !strings.Contains(err.Error(), "exited") {
		t.Error(err)
	}
}

func TestFlagsAreChecked(t *testing.T) {
	for _, e := range []experiment{
		{proxy: "apache", cpus: "one", family: "4"},
		{proxy: "nginx", cpus: "three", family: "4"},
		{proxy: "nginx", cpus: "one", family: "5"},
	} {
		if e.check() == nil {
			t.Errorf("%+v is accepted", e)
		}
	}
	if err := (&experiment{proxy: "envoy", cpus: "two", family: "6"}).check(); err != nil {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	for bytes, want := range map[int]string{24: "24", 1 << 10: "1K", 64 << 10: "64K", 1 << 20: "1M"} {
		if got := sizeText(bytes); got != want {
			t.Errorf("%d is %s", bytes, got)
		}
	}
	of := map[string]string{}
	for _, where := range places {
		for _, config := range configs {
			prefix := newRun().labPrefix(where, config)
			if other := of[prefix]; other != "" {
				t.Errorf("%s and %s/%s are both in %s", other, where, config, prefix)
			}
			of[prefix] = where + "/" + config
		}
	}
}

func TestGains(t *testing.T) {
	run := bench.NewRun(bench.Experiment{Baseline: "plain"}, true, bench.MinRounds, nil, io.Discard)
	for i := range 5 {
		wave := 1 + float64(i%2)/10
		for config, values := range map[string][3]float64{"plain": {10, 100, 3}, "kerb": {8, 90, 1}} {
			run.Record(config, "veth/x",
				bench.Sample{Metric: "latency", Stat: "p50", Value: values[0] * wave},
				bench.Sample{Metric: "rate", Stat: "p50", Value: values[1] * wave},
				bench.Sample{Metric: "jitter", Stat: "p50", Value: values[2]})
		}
	}
	all := gains(run.Report(), "kerb")
	if len(all) != 2 {
		t.Fatalf("%v", all)
	}
	latency, rate := all[0], all[1]
	if math.Abs(latency.value-1.25) > 1e-9 || latency.worse() || math.Abs(rate.value-0.9) > 1e-9 || !rate.worse() ||
		!rate.certain() {
		t.Errorf("%v", all)
	}
	if noise := latency.noise + rate.noise; noise > 1e-9 { // an equal change of all is no noise
		t.Errorf("noise %v", noise)
	}
	if (gain{value: 0.9, noise: 0.05}).certain() {
		t.Error("0.9 is certainly worse, though it may be 1")
	}
}

func TestParseRedis(t *testing.T) {
	const heading = `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"` + "\n"
	r, err := parseRedis([]byte(heading+`"GET","50000.00","0.015","0.008","0.016","0.023","0.031","0.100"`+"\n"), 1000)
	if err != nil || r.N != 1000 || r.Seconds != 0.02 || r.P50 != 16 || r.P99 != 31 || r.Mean != 15 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, bad := range []string{"", heading, "Could not connect to Redis\n",
		heading + `"GET","0.00","0","0","0","0","0","0"` + "\n"} {
		if _, err := parseRedis([]byte(bad), 1); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
