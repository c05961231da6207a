// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kerb-edge/kerb/bench"
)

// redisServer returns the command of Redis, without persistence.
func redisServer(s *serving) ([]string, error) {
	args := []string{"redis-server", "--save", "", "--appendonly", "no", "--protected-mode", "no", "--loglevel", "warning",
		"--dir", s.dir}
	on := s.listen()
	if on.isPath() {
		return append(args, "--port", "0", "--unixsocket", string(on)), nil
	}
	return append(args, "--bind", on.words()[0], "--port", on.words()[1]), nil
}

// minOperations operations that redis-benchmark is asked for: it takes some to open its connections.
const minOperations = 2000

// redis measures GET with redis-benchmark, on a number of connections with a number of pipelined requests on each.
func redis(connections, pipeline int) func(context.Context, *serving) ([]bench.Sample, error) {
	return func(ctx context.Context, s *serving) ([]bench.Sample, error) {
		args := []string{"redis-benchmark", "--csv", "-t", "get", "-c", strconv.Itoa(connections), "-P",
			strconv.Itoa(pipeline)}
		if to := s.target(); to.isPath() {
			args = append(args, "-s", string(to))
		} else {
			args = append(args, "-h", to.words()[0], "-p", to.words()[1])
		}
		n := max(minOperations, int(s.rate*s.length.requests.Seconds()))
		out, cpu, err := s.runClient(ctx, append(args, "-n", strconv.Itoa(n))...)
		if err != nil {
			return nil, err
		}
		r, err := parseRedis(out, n)
		s.rate = r.rate()
		return append(r.Samples("latency", "mean", "p50", "p99"), r.rateAndCost(r.N, cpu)...), err
	}
}

// parseRedis reads a heading and a line: "GET","75000.00","0.012",... in ms. Percentiles are in steps of 8 us, the mean
// is exact.
func parseRedis(out []byte, n int) (r result, err error) {
	rows, err := csv.NewReader(bytes.NewReader(out)).ReadAll()
	if err != nil || len(rows) != 2 {
		return r, fmt.Errorf("redis-benchmark reports %q: %w", out, err)
	}
	values := map[string]float64{}
	for i, name := range rows[0] {
		values[name], _ = strconv.ParseFloat(rows[1][i], 64) // one is the name of the command
	}
	if values["rps"] == 0 || values["p99_latency_ms"] == 0 {
		return r, fmt.Errorf("redis-benchmark reports %q", out)
	}
	times := bench.Times{Mean: values["avg_latency_ms"] * 1e3, P50: values["p50_latency_ms"] * 1e3,
		P99: values["p99_latency_ms"] * 1e3}
	return result{Times: times, N: uint64(n), Seconds: float64(n) / values["rps"]}, nil
}

// httpServer returns the command of nginx with a page of one kilobyte.
func httpServer(s *serving) ([]string, error) {
	config := filepath.Join(s.dir, s.w.name+".conf")
	page := strings.Repeat("x", 1<<10)
	text := nginxMain(s.dir) + fmt.Sprintf("http {\n\taccess_log off;\n\tkeepalive_requests 1000000000;\n"+
		"\tserver { listen %s; location / { return 200 %s; } }\n}\n", s.listen(), page)
	return nginx(config), os.WriteFile(config, []byte(text), 0o644)
}

// httpConnections is the number of concurrent connections.
const httpConnections = 16

// http measures with wrk, whose minimum duration is a second. With "close", every request opens a connection.
func http(connection string) func(context.Context, *serving) ([]bench.Sample, error) {
	return func(ctx context.Context, s *serving) ([]bench.Sample, error) {
		out, cpu, err := s.runClient(ctx, "wrk", "-t", "1", "-c", strconv.Itoa(httpConnections), "-d", "1s",
			"-s", filepath.Join(s.tools.Dir, "src/report.lua"), "-H", "Connection: "+connection,
			fmt.Sprintf("http://%s/", s.target()))
		if err != nil {
			return nil, err
		}
		var r result
		last := out[bytes.LastIndexByte(bytes.TrimSpace(out), '\n')+1:]
		if err := json.Unmarshal(last, &r); err != nil {
			return nil, fmt.Errorf("wrk reports %q: %w", out, err)
		}
		if r.Wrong > 0 && s.config == publishedKeys {
			return nil, fmt.Errorf("%d of %d requests failed", r.Wrong, r.N)
		}
		if r.Wrong > 0 {
			s.run.Invalidate("%s, %s/%s: %d of %d requests failed", s.config, s.where, s.w.name, r.Wrong, r.N)
		}
		return append(append(r.Samples("latency", "p50", "p99"), r.jitter()), r.rateAndCost(r.N, cpu)...), nil
	}
}
