// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/kerb-edge/kerb/bench"
)

// workload is a pair of client and server.
type workload struct {
	name string
	port int
	unix bool // it can run over AF_UNIX
	// server returns the command of the server; measure runs one round of the client.
	server  func(s *serving) ([]string, error)
	measure func(ctx context.Context, s *serving) ([]bench.Sample, error)
}

// sizes are the message sizes of the sweep, in bytes.
var sizes = []int{64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}

// workloads are in order, each on a separate port, so that adaptation to one server does not affect the next.
var workloads = allWorkloads()

func allWorkloads() []workload {
	var all []workload
	add := func(name string, unix bool, server func(*serving) ([]string, error),
		measure func(context.Context, *serving) ([]bench.Sample, error)) {
		all = append(all, workload{name, firstPort + len(all), unix, server, measure})
	}
	add("echo-24", true, echoServer("echo", 24), echo(24))
	for _, size := range sizes {
		add("echo-"+sizeText(size), true, echoServer("echo", size), echo(size))
	}
	for _, size := range sizes {
		add("stream-"+sizeText(size), true, streamServer, stream(size))
	}
	add("file", true, streamServer, file)
	for _, pipeline := range []int{1, 16} {
		for _, connections := range []int{1, 16, 50} {
			add(redisName(connections, pipeline), true, redisServer, redis(connections, pipeline))
		}
	}
	add("http", false, httpServer, http("keep-alive"))
	add("http-close", false, httpServer, http("close"))
	add("rare-24", false, echoServer("many", 24), rare(24))
	add("held", false, echoServer("many", 24), measureHeld)
	return all
}

func (v variant) workload(name string) workload {
	return v.workloads[slices.IndexFunc(v.workloads, func(w workload) bool { return w.name == name })]
}

// sizeText formats a size: 64, 4K or 1M.
func sizeText(bytes int) string {
	for _, unit := range []string{"", "K"} {
		if bytes < 1<<10 {
			return strconv.Itoa(bytes) + unit
		}
		bytes >>= 10
	}
	return strconv.Itoa(bytes) + "M"
}

// loads returns all workloads at all places. Those about the cost of connections run at few places, since that cost
// depends on namespaces only.
func loads() []string {
	var all []string
	for _, place := range places {
		for _, w := range workloads {
			if w.name != "held" && w.name != "rare-24" || place == "loopback" || place == "veth" {
				all = append(all, place+"/"+w.name)
			}
		}
	}
	return all
}

func (v variant) ports() []int {
	var all []int
	for _, w := range v.workloads {
		all = append(all, w.port)
	}
	return all
}

// lengths are the durations of one round, the size of the file in bytes, and the number of held connections.
type lengths struct {
	trip, stream, requests, warm time.Duration
	rest                         time.Duration // timeout for idle connections to be removed
	rare                         time.Duration // idle time between pings
	file, held                   int
	amounts                      // of the workloads of meshes
}

func lengthsOf(quick bool) lengths {
	l := lengths{trip: 400 * time.Millisecond, stream: 250 * time.Millisecond, requests: 400 * time.Millisecond,
		warm: 50 * time.Millisecond,
		rest: 30 * time.Second, rare: 2200 * time.Millisecond, file: 1000 << 20, held: 10_000, // as published
		amounts: meshAmounts}
	if quick {
		l.trip, l.stream, l.requests, l.warm = 150*time.Millisecond, 100*time.Millisecond, 150*time.Millisecond,
			20*time.Millisecond
		l.amounts = meshQuickAmounts
	}
	return l
}

// share returns the lengths for a fraction of the published experiments.
func (l lengths) share(scale float64) lengths {
	if scale > 0 {
		l.file = max(1<<20, int(scale*float64(l.file)))
		l.amounts = meshAmounts.share(scale)
	}
	return l
}

// serving is the running server of a workload.
type serving struct {
	*contender
	w       workload
	process *process
	length  lengths
	rate    float64 // of the previous round, 1/s
}

// serve starts the server and lets the client use it briefly, so that the accelerator has adapted to the programs.
func (c *contender) serve(ctx context.Context, w workload) (*serving, error) {
	s := &serving{contender: c, w: w, length: c.lengths}
	args, err := w.server(s)
	if err != nil {
		return nil, err
	}
	if s.process, err = c.start(ctx, c.place.server.Namespace, serverSide, dial(c.place.fromWithin(s.listen())),
		args...); err != nil {
		return nil, err
	}
	if err := s.warm(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("%w; the server said: %s", err, &s.process.said), s.Close())
	}
	return s, nil
}

func (s *serving) warm(ctx context.Context) error {
	whole := s.length
	s.length.trip, s.length.stream, s.length.requests, s.length.rest, s.length.rare = whole.warm, whole.warm,
		whole.warm, 0, 0
	s.length.amounts = meshWarmAmounts
	defer func() { s.length = whole }()
	switch {
	case s.kerb != nil:
		return s.awaitClassified(ctx)
	case s.config == publishedKeys:
		return s.warmPublished(ctx)
	}
	_, err := s.w.measure(ctx, s)
	return err
}

// settleTime is the pause before each round, in which the agent becomes idle after its counters were read.
const settleTime = 20 * time.Millisecond

func (s *serving) round(ctx context.Context) ([]bench.Sample, error) {
	measure := func() ([]bench.Sample, error) {
		time.Sleep(settleTime)
		samples, err := s.w.measure(ctx, s)
		if err != nil || slices.ContainsFunc(samples, func(s bench.Sample) bool { return s.Metric == bench.MemoryMetric }) {
			return samples, err
		}
		memory, err := s.usage().MemorySample() // the client has exited
		return append(samples, memory), err
	}
	if s.kerb == nil {
		return measure()
	}
	return s.countConnections(measure)
}

// Close stops the server.
func (s *serving) Close() error { return s.process.stop() }

// listen and target return the server's address, for the server and for the client.
func (s *serving) listen() address { return s.place.listen(s.w.port) }
func (s *serving) target() address { return s.place.target(s.w.port) }

// result is the output of clients; times in us.
type result struct {
	bench.Times

	N, All, Wrong uint64
	Seconds       float64
}

func (r result) rate() float64 { return float64(r.N) / r.Seconds }

// client runs the C client.
func (s *serving) client(ctx context.Context, mode string, size int,
	much string) (r result, cpu time.Duration, err error) {
	out, cpu, err := s.runClient(ctx, slices.Concat([]string{s.tools.Path("client"), mode, strconv.Itoa(size), much},
		s.target().words())...)
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	return r, cpu, err
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

func echoServer(mode string, size int) func(*serving) ([]string, error) {
	return func(s *serving) ([]string, error) {
		return append([]string{s.tools.Path("server"), mode, strconv.Itoa(size)}, s.listen().words()...), nil
	}
}

// echo measures requests and replies of a size on one connection.
func echo(size int) func(context.Context, *serving) ([]bench.Sample, error) {
	return func(ctx context.Context, s *serving) ([]bench.Sample, error) {
		r, cpu, err := s.client(ctx, "echo", size, seconds(s.length.trip))
		if err != nil {
			return nil, err
		}
		samples := append(r.Samples("latency", "p1", "p25", "p50", "mean", "p75", "p99", "p99.9"), r.jitter())
		return append(samples, r.rateAndCost(r.All, cpu)...), nil
	}
}

// rare measures requests and replies on connections that are idle for longer than thresholds.idle of the accelerator,
// here a second.
func rare(size int) func(context.Context, *serving) ([]bench.Sample, error) {
	return func(ctx context.Context, s *serving) ([]bench.Sample, error) {
		if err := s.accelerate(map[string]any{"idle": 1}); err != nil {
			return nil, err
		}
		r, _, err := s.client(ctx, "rare", size, seconds(s.length.rare))
		return append(r.Samples("latency", "p50", "p99"), r.jitter()), errors.Join(err, s.accelerate(map[string]any{}))
	}
}

// jitter returns the standard deviation.
func (r result) jitter() bench.Sample {
	return bench.P50("jitter", "us", r.Stddev)
}

// rateAndCost returns rate and CPU time. The CPU time is divided by all operations, including those outside the
// measured rate.
func (r result) rateAndCost(all uint64, cpu time.Duration) []bench.Sample {
	return []bench.Sample{
		bench.P50("rate", "1/s", r.rate()),
		bench.P50("cpu_op", "us", float64(cpu.Nanoseconds())/1e3/float64(all)),
	}
}

func streamServer(s *serving) ([]string, error) {
	return append([]string{s.tools.Path("server"), "swallow", "0"}, s.listen().words()...), nil
}

// stream measures the transfer of bytes in one direction with writes of a size, until the last byte has arrived.
func stream(size int) func(context.Context, *serving) ([]bench.Sample, error) {
	return func(ctx context.Context, s *serving) ([]bench.Sample, error) {
		bytes, err := s.streamed(ctx, size)
		if err != nil {
			return nil, err
		}
		r, cpu, err := s.client(ctx, "stream", size, strconv.FormatUint(bytes, 10))
		return r.transfer(cpu), err
	}
}

// streamed returns the number of bytes per round: what the first contender transfers in the time, found by doubling.
func (s *serving) streamed(ctx context.Context, size int) (uint64, error) {
	load := s.where + "/" + s.w.name
	for bytes := uint64(1 << 20); s.bytes[load] == 0; bytes *= 2 {
		r, _, err := s.client(ctx, "stream", size, strconv.FormatUint(bytes, 10))
		if err != nil {
			return 0, err
		}
		if whole := s.lengths.stream.Seconds(); r.Seconds > whole/8 {
			s.bytes[load] = uint64(r.rate() * whole)
		}
	}
	return s.bytes[load], nil
}

func (r result) transfer(cpu time.Duration) []bench.Sample {
	return []bench.Sample{
		bench.P50("throughput", "Gbit/s", r.rate()*8/1e9),
		bench.P50("fct", "s", r.Seconds),
		bench.P50("cpu_byte", "ns", float64(cpu.Nanoseconds())/float64(r.N)),
	}
}

const chunk = 64 << 10 // CHUNK of src/wire.h

func file(ctx context.Context, s *serving) ([]bench.Sample, error) {
	path, err := s.tools.fileOf(s.length.file)
	if err != nil {
		return nil, err
	}
	r, cpu, err := s.client(ctx, "file", chunk, path)
	return r.transfer(cpu), err
}

func redisName(connections, pipeline int) string {
	if pipeline > 1 {
		return fmt.Sprintf("redis-p%d-%d", pipeline, connections)
	}
	return fmt.Sprintf("redis-%d", connections)
}
