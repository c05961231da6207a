// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/bench"
)

func newMeshExperiment(t *testing.T, where string) *experiment {
	t.Helper()
	if err := meshAvailable(where); err != nil {
		t.Skip(err)
	}
	e := newExperiment(t, where)
	e.variant, e.lengths.amounts = mesh, amounts{trips: 100, operations: 20, messages: 100}
	return e
}

// openedMesh returns a place with its proxies but without a workload.
func openedMesh(t *testing.T, where string) *contender {
	t.Helper()
	c, err := newMeshExperiment(t, where).contender(t.Context(), "plain")
	if errors.Is(err, bench.ErrNotBuilt) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

var meshFigures = []string{"latency p1", "latency p25", "latency p50", "latency mean", "latency p75", "latency p99",
	"jitter p50", "fct p50", "rate p50", "cpu p50", "memory p50", "segments p50"}

func checkMeshFigures(t *testing.T, name string, samples []bench.Sample) {
	t.Helper()
	want := meshFigures
	if name == "file" {
		want = []string{"throughput p50", "fct p50", "cpu p50", "memory p50", "segments p50"}
	}
	var got []string
	for _, s := range samples {
		if s.Unit == "connections" { // with the accelerator
			continue
		}
		got = append(got, s.Metric+" "+s.Stat)
		if !(s.Value > 0) && s.Metric != "segments" { // there are none with AF_UNIX
			t.Errorf("%s: %s %s is %v", name, s.Metric, s.Stat, s.Value)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v, want %v", name, got, want)
	}
}

// Every workload reaches the server at the service's address through every mesh, and reports its metrics.
func TestMeshes(t *testing.T) {
	for _, where := range meshes {
		t.Run(where, func(t *testing.T) {
			e := openedMesh(t, where).experiment // its context outlives those of the workloads
			for _, w := range e.workloads {
				t.Run(w.name, func(t *testing.T) { checkMeshFigures(t, w.name, measure(t, e, "plain", w.name)) })
			}
			if where == "sidecar" {
				checkMeshFigures(t, "echo", measure(t, e, "unix", "echo"))
			}
		})
	}
}

// With the accelerator, all connections between the programs of a mesh are redirected, except in ambient mode, where
// ztunnel is an end of each. redirect-all redirects these, too.
func TestMeshKerb(t *testing.T) {
	for name, c := range map[string]struct {
		where, config string
		echo, mqtt    float64
	}{
		"none":        {"none", "kerb", 1, 2},
		"cilium-like": {"cilium-like", "kerb", 1, 2},
		"ambient":     {"ambient", "kerb", 0, 0},
		"ambient-all": {"ambient", "redirect-all", 3, 5}, // one between the pods, for both connections of MQTT
		"sidecar":     {"sidecar", "kerb", 3, 6},
	} {
		t.Run(name, func(t *testing.T) {
			e := newMeshExperiment(t, c.where)
			for name, connections := range map[string]float64{"echo": c.echo, "mqtt-qos1": c.mqtt} {
				var accelerated float64
				for range 3 { // a busy machine may preempt a client within a request
					samples := measure(t, e, c.config, name)
					checkMeshFigures(t, name, samples)
					if accelerated = samples[len(samples)-1].Value; accelerated == connections {
						break
					}
				}
				if accelerated != connections {
					t.Errorf("%s: %v connections accelerated, want %v", name, accelerated, connections)
				}
			}
		})
	}
}

// A pod with a sidecar rejects connections that do not come from another sidecar: sidecars use mutual TLS.
func TestSidecarsAuthenticate(t *testing.T) {
	c := openedMesh(t, "sidecar")
	w := c.workload("echo")
	s, err := c.serve(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	to := netip.AddrPortFrom(c.place.server.Addr4(), uint16(w.port)).String()
	pings := func() (n int, err error) {
		conn, err := net.DialTimeout("tcp", to, 5*time.Second)
		if err != nil {
			return 0, err
		}
		defer conn.Close()
		if _, err := conn.Write(make([]byte, 24)); err != nil {
			return 0, err
		}
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		return io.ReadFull(conn, make([]byte, 24))
	}
	err = c.place.lab.Node().Do(func() error { // bypasses the proxies
		if n, err := pings(); err == nil {
			t.Errorf("a client without a certificate has %d bytes echoed", n)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	err = c.place.client.Do(func() error {
		if _, err := pings(); err != nil {
			t.Errorf("through its sidecar: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Packets of the cilium-like path bypass the node's stack: packets that the stack would drop arrive.
func TestPeersAreRedirected(t *testing.T) {
	c := openedMesh(t, "cilium-like")
	drop := "table ip filter { chain forward { type filter hook forward priority 0; policy drop; }; }\n"
	if err := c.place.feed(c.place.lab.Node(), drop); err != nil {
		t.Fatal(err)
	}
	checkMeshFigures(t, "echo", measure(t, c.experiment, "plain", "echo"))
}

func TestMeshIsLeftOut(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, where := range meshes {
		err := meshAvailable(where)
		if lacks := where == "ambient" || where == "sidecar"; lacks != errors.Is(err, bench.ErrLeftOut) {
			t.Errorf("%s: %v", where, err)
		}
	}
	e := newVariant(mesh)
	e.run = bench.NewRun(bench.Experiment{}, true, bench.MinRounds, nil, io.Discard)
	for _, load := range []string{"ambient/echo", "sidecar/echo"} {
		if err := e.runLoad(t.Context(), load); err != nil {
			t.Fatal(err)
		}
	}
	if notes := e.run.Report().Notes; len(notes) != 2 || !strings.Contains(notes[0], "ztunnel is not on PATH") ||
		!strings.Contains(notes[1], "envoy is not on PATH") {
		t.Errorf("%q", notes)
	}
}

// The text is from memtier_benchmark 2f74d61, shortened.
func TestParseMemtier(t *testing.T) {
	const whole = `{"ALL STATS": {"Totals": {"Count": 10000, "Ops/sec": 50000.00, "Latency": 1.5, "Average Latency": 1.500,
		"Time-Serie": {"0": {"Count": 10000}}, "Percentile Latencies": {"p25.00": 1.1, "p50.00": 1.2, "p75.00": 1.3, "p99.00": 9.9,
		"Histogram log format": {"Compressed Histogram": "HISTFAAA"}}}}}`
	r, err := parseMemtier([]byte(whole))
	if err != nil || r.N != 10000 || r.Seconds != 0.2 || r.Mean != 1500 || r.P25 != 1100 || r.P50 != 1200 ||
		r.P75 != 1300 || r.P99 != 9900 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, bad := range []string{"", "{}", strings.ReplaceAll(whole, "10000,", "0,"),
		strings.ReplaceAll(whole, "p25.00", "p25"),
		strings.ReplaceAll(whole, "50000.00", "0.00")} {
		if _, err := parseMemtier([]byte(bad)); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// The command writes a report with all configs.
func TestMeshCommand(t *testing.T) {
	newMeshExperiment(t, "none")
	path := filepath.Join(t.TempDir(), "mesh.json")
	var table strings.Builder
	cmd := bench.Command()
	cmd.SetOut(&table)
	cmd.SetErr(io.Discard)
	cmd.SetArgs([]string{"mesh", "--quick", "--loads", "none/echo", "--out", path})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var report bench.Report
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	for _, config := range meshConfigs[:4] { // unix exists for sidecars only
		if c, ok := report.Find(config, "none/echo", "latency", "p50"); !ok || !(c.Value > 0) ||
			len(c.Rounds) != bench.MinRounds {
			t.Errorf("%s: %+v", config, c)
		}
	}
	if want := "kerb is configured to include ["; !strings.Contains(table.String(), want) {
		t.Errorf("%q is not in\n%s", want, &table)
	}
}

// `kerb bench paper` measures fractions of the published amounts, down to a minimum.
func TestShares(t *testing.T) {
	whole := lengthsOf(false)
	if got := whole.share(0); got != whole {
		t.Errorf("without a share: %+v", got)
	}
	if got := lengthsOf(true).share(1); got.amounts != meshAmounts || got.file != whole.file {
		t.Errorf("all of it: %+v", got)
	}
	if got := whole.share(0.1); got.amounts != (amounts{10_000, 1000, 5000}) || got.file != 100<<20 {
		t.Errorf("a tenth: %+v", got)
	}
	if got := whole.share(1e-9); got.trips == 0 || got.operations == 0 || got.messages == 0 || got.file == 0 {
		t.Errorf("nothing: %+v", got)
	}
}
