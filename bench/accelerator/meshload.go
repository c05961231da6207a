// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/path"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// meshWorkloads are the workloads of Simas 2025, and MQTT.
var meshWorkloads = []workload{
	{"echo", firstPort, true, pythonServer, withLabCosts(pythonEcho)},
	{"redis", firstPort + 1, false, redisServer, withLabCosts(redisMix)},
	{"file", firstPort + 2, false, streamServer, withLabCosts(file)},
	{"mqtt-qos0", firstPort + 3, false, mqttBroker, withLabCosts(mqtt(0))},
	{"mqtt-qos1", firstPort + 4, false, mqttBroker, withLabCosts(mqtt(1))},
}

// withLabCosts adds the CPU time and memory of all programs of the lab, and the number of sent TCP segments.
func withLabCosts(measure func(context.Context, *serving) ([]bench.Sample, error)) func(context.Context,
	*serving) ([]bench.Sample, error) {
	return func(ctx context.Context, s *serving) ([]bench.Sample, error) {
		u := s.usage()
		before, err := u.CPU()
		sent, wrong := s.segments()
		if err = errors.Join(err, wrong); err != nil {
			return nil, err
		}
		memory := watchMemory(u)
		samples, err := measure(ctx, s)
		after, wrong := u.CPU()
		all, lost := s.segments()
		bytes, failed := memory()
		tables, refused := u.Tables()
		samples = slices.DeleteFunc(samples, func(sample bench.Sample) bool {
			return strings.HasPrefix(sample.Metric, "cpu_") // of a single program
		})
		return append(samples, bench.P50("cpu", "s", (after-before).Seconds()),
				bench.P50("memory", "MiB", float64(bytes+tables)/(1<<20)), bench.P50("segments", "count", float64(all-sent))),
			errors.Join(err, wrong, failed, refused, lost)
	}
}

// segments returns the number of TCP segments that both pods have sent, including acknowledgements.
func (c *contender) segments() (sum uint64, err error) {
	for _, h := range []*netlab.Host{c.place.client, c.place.server} {
		wrong := h.Do(func() error {
			n, err := sentSegments()
			sum += n
			return err
		})
		err = errors.Join(err, wrong)
	}
	return sum, err
}

// sentSegments returns the number of segments sent in the thread's namespace. In its source, a line of names precedes a
// line of values.
func sentSegments() (uint64, error) {
	const file, name = "/proc/thread-self/net/snmp", "OutSegs"
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	at := -1
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] != "Tcp:":
		case at < 0:
			at = slices.Index(f, name)
		case at < len(f):
			return strconv.ParseUint(f[at], 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s of TCP", file, name)
}

// usage returns the usage of all programs of the contender, including its agent.
func (c *contender) usage() path.Usage {
	u := path.Usage{Group: c.group}
	if c.kerb != nil {
		u.Agents = []*node.Node{c.kerb.Node}
	}
	return u
}

// watchMemory starts to read the memory of all programs. The returned function stops it and returns the maximum.
func watchMemory(u path.Usage) func() (int64, error) {
	var most int64
	var failed error
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(memoryPeriod):
				bytes, err := u.Memory()
				most, failed = max(most, bytes), errors.Join(failed, err)
			}
		}
	}()
	return func() (int64, error) {
		close(stop)
		<-stopped
		bytes, err := u.Memory()
		return max(most, bytes), errors.Join(failed, err)
	}
}

// figures returns the samples of requests and replies, without those that the client does not report.
func (r result) figures() []bench.Sample {
	stats := []string{"p1", "p25", "p50", "mean", "p75", "p99"}
	if r.Stddev == 0 {
		stats = stats[1:]
	}
	samples := r.Samples("latency", stats...)
	if r.Stddev > 0 {
		samples = append(samples, r.jitter())
	}
	return append(samples, bench.P50("fct", "s", r.Seconds), bench.P50("rate", "1/s", r.rate()))
}

// runReporting runs a client that prints a result.
func (s *serving) runReporting(ctx context.Context, args ...string) ([]bench.Sample, error) {
	out, _, err := s.runClient(ctx, args...)
	if err != nil {
		return nil, err
	}
	var r result
	if err := json.Unmarshal(out, &r); err != nil {
		return nil, fmt.Errorf("%s reports %q: %w", filepath.Base(args[0]), out, err)
	}
	return r.figures(), nil
}

// pythonPath returns the path of the interpreter itself, so that a wrapper script on PATH is not measured.
var pythonPath = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("python3", "-c", "import os, sys; print(os.path.realpath(sys.executable))").Output()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%w: python3 is not installed", bench.ErrLeftOut)
	}
	return strings.TrimSpace(string(out)), err
})

// python returns a command that runs src/echo.py.
func (s *serving) python(args ...string) ([]string, error) {
	path, err := pythonPath()
	return append([]string{path, filepath.Join(s.tools.Dir, "src/echo.py")}, args...), err
}

func pythonServer(s *serving) ([]string, error) {
	return s.python(append([]string{"server"}, s.listen().words()...)...)
}

// pythonEcho measures requests and replies of 24 bytes with a time stamp.
func pythonEcho(ctx context.Context, s *serving) ([]bench.Sample, error) {
	args, err := s.python(slices.Concat([]string{"client"}, s.target().words(), []string{strconv.Itoa(s.length.trips)})...)
	if err != nil {
		return nil, err
	}
	return s.runReporting(ctx, args...)
}

// The published parameters of memtier_benchmark: threads, and connections per thread.
const (
	memtier            = "memtier_benchmark"
	memtierThreads     = 2
	memtierConnections = 50
)

// redisMix measures one SET and ten GETs in turn on all connections, with memtier_benchmark if it is installed.
func redisMix(ctx context.Context, s *serving) ([]bench.Sample, error) {
	threads, connections, operations := strconv.Itoa(memtierThreads), strconv.Itoa(memtierConnections),
		strconv.Itoa(s.length.operations)
	host, port := s.target().words()[0], s.target().words()[1]
	if _, err := exec.LookPath(memtier); err != nil {
		return s.runReporting(ctx, s.tools.Path("memtier"), threads, connections, operations, host, port)
	}
	file := filepath.Join(s.dir, "memtier.json")
	_, _, err := s.runClient(ctx, memtier, "--server", host, "--port", port, "--threads", threads,
		"--clients", connections,
		"--requests", operations, "--ratio", "1:10", "--hide-histogram", "--print-percentiles", "25,50,75,99",
		"--json-out-file", file)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r, err := parseMemtier(text)
	return r.figures(), err
}

// parseMemtier reads the file of --json-out-file, whose times are in ms.
func parseMemtier(text []byte) (r result, err error) {
	var report struct {
		All struct {
			Totals struct {
				Count   uint64
				Rate    float64        `json:"Ops/sec"`
				Mean    float64        `json:"Average Latency"`
				Latency map[string]any `json:"Percentile Latencies"`
			}
		} `json:"ALL STATS"`
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return r, fmt.Errorf("memtier_benchmark reports %.100q: %w", text, err)
	}
	t := report.All.Totals
	us := func(name string) float64 {
		ms, _ := t.Latency[name].(float64)
		return ms * 1e3
	}
	r.Times = bench.Times{P25: us("p25.00"), P50: us("p50.00"), Mean: t.Mean * 1e3, P75: us("p75.00"), P99: us("p99.00")}
	if t.Count == 0 || t.Rate <= 0 || r.P25 == 0 || r.P99 == 0 {
		return r, fmt.Errorf("memtier_benchmark reports %.100q: the count, the rate or the percentiles are missing", text)
	}
	r.N, r.Seconds = t.Count, float64(t.Count)/t.Rate
	return r, nil
}

// mqttBroker returns the command of mosquitto, without persistence and with TCP_NODELAY.
func mqttBroker(s *serving) ([]string, error) {
	config := filepath.Join(s.dir, s.w.name+".conf")
	at := s.listen().words()
	text := fmt.Sprintf("listener %s %s\nallow_anonymous true\npersistence false\nset_tcp_nodelay true\nuser root\n"+
		"log_type error\n", at[1], at[0])
	return []string{"mosquitto", "-c", config}, os.WriteFile(config, []byte(text), 0o644)
}

// mqtt measures a publisher that waits until the subscriber has received the message.
func mqtt(qos int) func(context.Context, *serving) ([]bench.Sample, error) {
	return func(ctx context.Context, s *serving) ([]bench.Sample, error) {
		return s.runReporting(ctx, slices.Concat([]string{s.tools.Path("mqtt"), strconv.Itoa(qos),
			strconv.Itoa(s.length.messages)}, s.target().words())...)
	}
}
