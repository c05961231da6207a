// SPDX-License-Identifier: Apache-2.0

// Package path measures the path between two hosts: TCP throughput, connect and round-trip times, jitter of a UDP
// stream at a low rate, and the CPU time at 100 Mbit/s. iperf3 generates the streams. Connections and round trips run
// both ends on one CPU, so that wakeups of other CPUs are not measured.
package path

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

// Ports that must be reachable over TCP and UDP.
const (
	StreamPort = 5201 // iperf3
	TripPort   = 5202
)

// Path is the path between a client and a server.
type Path struct {
	Client, Server *netlab.Host
	Address        netip.Addr   // where the client finds the server
	Group          *Group       // measures CPU time; must include processes that forward in user space
	Agents         []*node.Node // of Kerb, with their CPU time and memory
	iperf          *exec.Cmd
	said           bytes.Buffer
}

// Open starts the servers.
func (p *Path) Open() error {
	if _, err := exec.LookPath("iperf3"); err != nil {
		return fmt.Errorf("%w: install iperf3", err)
	}
	p.iperf = p.Group.Adopt(p.Server.Command(context.Background(), "iperf3", "-s", "-p", strconv.Itoa(StreamPort)))
	p.iperf.Stdout, p.iperf.Stderr = &p.said, &p.said
	if err := p.iperf.Start(); err != nil {
		return err
	}
	return p.await()
}

// await waits until a stream succeeds.
func (p *Path) await() (err error) {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, err = p.run("-n", "1K"); err == nil {
			return nil
		}
	}
	return fmt.Errorf("no connection to %s: %w", p.Address, err)
}

// Close stops the servers.
func (p *Path) Close() error {
	if p.iperf == nil || p.iperf.Process == nil {
		return nil
	}
	_ = p.iperf.Process.Kill()
	_ = p.iperf.Wait() // killed
	return nil
}

// result has the fields of iperf3's report that are used.
type result struct {
	Error string `json:"error"`
	End   struct {
		Received struct {
			Rate float64 `json:"bits_per_second"`
		} `json:"sum_received"`
		Sum struct {
			Jitter  float64 `json:"jitter_ms"`
			Lost    int     `json:"lost_packets"`
			Packets int     `json:"packets"`
		} `json:"sum"`
	} `json:"end"`
}

const iperfTimeout = 30 * time.Second

func (p *Path) command(ctx context.Context, args ...string) *exec.Cmd {
	args = append([]string{"-c", p.Address.String(), "-p", strconv.Itoa(StreamPort), "-J"}, args...)
	return p.Group.Adopt(p.Client.Command(ctx, "iperf3", args...))
}

func (p *Path) run(args ...string) (result, error) {
	return untilIdle(func() (result, error) {
		ctx, cancel := context.WithTimeout(context.Background(), iperfTimeout)
		defer cancel()
		out, err := p.command(ctx, args...).Output()
		return parse(out, err)
	})
}

// errBusy is iperf3's error while its server has not finished the previous test, which it does after the client has
// exited.
var errBusy = errors.New("iperf3: the server is busy")

// untilIdle retries f while the server is busy, at most for the duration of a test.
func untilIdle[T any](f func() (T, error)) (T, error) {
	for deadline := time.Now().Add(iperfTimeout); ; {
		v, err := f()
		if !errors.Is(err, errBusy) || time.Now().After(deadline) {
			return v, err
		}
		time.Sleep(20 * time.Millisecond) // the server does not report when it is idle
	}
}

func parse(out []byte, err error) (r result, _ error) {
	if wrong := json.Unmarshal(out, &r); wrong != nil {
		return r, errors.Join(err, fmt.Errorf("iperf3 reports %q: %w", out, wrong))
	}
	if strings.Contains(r.Error, "server is busy") {
		return r, errBusy
	}
	if r.Error != "" {
		return r, fmt.Errorf("iperf3: %s", r.Error)
	}
	return r, err
}

// times are how long one round measures.
type times struct {
	stream            time.Duration // 0: as long as iperf3 needs
	thin              []string      // iperf3's option for the duration
	connects          int
	trips, calm, cost time.Duration
}

func timesOf(quick bool) times {
	if quick {
		return times{stream: 200 * time.Millisecond, thin: []string{"-n", "25K"}, connects: 100,
			trips: 100 * time.Millisecond}
	}
	return times{thin: []string{"-t", "2"}, connects: 1000, trips: 500 * time.Millisecond,
		calm: 500 * time.Millisecond, cost: 2 * time.Second}
}

// Measure measures one round. A quick one omits parallel streams and the cost of a steady stream.
func (p *Path) Measure(quick bool) ([]bench.Sample, error) {
	t := timesOf(quick)
	samples, err := p.streams(t)
	if err != nil {
		return nil, err
	}
	connects, err := traffic.Connects(p.Client, p.Server, netip.AddrPortFrom(p.Address, TripPort), t.connects)
	if err != nil {
		return nil, err
	}
	trips, err := p.Trips(t.trips)
	if err != nil {
		return nil, err
	}
	samples = append(samples, bench.MedianAnd99("connect", "us", connects)...)
	samples = append(samples, bench.MedianAnd99("rr", "us", trips)...)
	if t.cost == 0 {
		return samples, nil
	}
	maxThroughput, err := p.maxThroughput(samples[0].Value)
	if err != nil {
		return nil, fmt.Errorf("parallel streams: %w", err)
	}
	costs, err := p.costs(t.calm, t.cost)
	return append(append(samples, bench.P50("throughput_max", "Gbit/s", maxThroughput)), costs...), err
}

const maxStreams = 8

// maxThroughput finds the bottleneck: it doubles the number of parallel streams until the total throughput no longer
// rises. one is the throughput of a single stream, in Gbit/s.
func (p *Path) maxThroughput(one float64) (float64, error) {
	best := one
	for streams := 2; streams <= maxStreams; streams *= 2 {
		all, err := p.run("-t", "1", "-O", "1", "-P", strconv.Itoa(streams))
		if err != nil {
			return 0, err
		}
		rate := all.End.Received.Rate / 1e9
		if rate <= best {
			break
		}
		best = rate
	}
	return best, nil
}

// streams measures TCP at full speed and the jitter (RFC 3550) of UDP at 1 Mbit/s.
func (p *Path) streams(t times) ([]bench.Sample, error) {
	full, err := p.throughput(t.stream)
	if err != nil {
		return nil, fmt.Errorf("throughput: %w", err)
	}
	thin, err := p.run(append([]string{"-u", "-b", "1M", "-l", "1000"}, t.thin...)...)
	if err != nil {
		return nil, fmt.Errorf("jitter: %w", err)
	}
	return []bench.Sample{
		bench.P50("throughput", "Gbit/s", full/1e9),
		bench.P50("jitter", "us", thin.End.Sum.Jitter*1e3),
		bench.Count("lost", uint64(thin.End.Sum.Lost)),
	}, nil
}

// throughput returns the throughput of one TCP stream in bit/s. For less than a second, it does not use iperf3, which
// supports only whole seconds.
func (p *Path) throughput(quick time.Duration) (float64, error) {
	if quick == 0 {
		full, err := p.run("-t", "2", "-O", "1")
		return full.End.Received.Rate, err
	}
	rate, err := p.burst(quick)
	for tries := 1; errors.Is(err, traffic.ErrStarved) && tries < 5; tries++ {
		rate, err = p.burst(quick)
	}
	return rate, err
}

func (p *Path) burst(duration time.Duration) (float64, error) {
	pair, err := traffic.Connect(p.Client, p.Server, netip.AddrPortFrom(p.Address, TripPort))
	if err != nil {
		return 0, err
	}
	defer pair.Close()
	return pair.Throughput(duration)
}

// costs returns the CPU time of all programs of the path, and their memory and that of Kerb's maps while nothing is
// sent.
func (p *Path) costs(calm, duration time.Duration) ([]bench.Sample, error) {
	cores, err1 := untilIdle(func() (float64, error) { return p.cost(calm, duration) })
	memory, err2 := p.usage().MemorySample()
	return []bench.Sample{bench.P50("cpu", "cores", cores), memory}, errors.Join(err1, err2)
}

func (p *Path) usage() Usage { return Usage{Group: p.Group, Agents: p.Agents} }

// cost returns the CPU time of TCP at 100 Mbit/s, in cores, including Kerb's agents and excluding start and end of
// iperf3.
func (p *Path) cost(calm, duration time.Duration) (float64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), iperfTimeout)
	defer cancel()
	seconds := strconv.Itoa(int((2*calm + duration).Seconds() + 0.5))
	var out bytes.Buffer
	cmd := p.command(ctx, "-b", "100M", "-t", seconds)
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	time.Sleep(calm)
	start := time.Now()
	before, err := p.usage().CPU()
	time.Sleep(duration)
	after, err2 := p.usage().CPU()
	elapsed := time.Since(start)
	err3 := cmd.Wait()
	_, err3 = parse(out.Bytes(), err3)
	return (after - before).Seconds() / elapsed.Seconds(), errors.Join(err, err2, err3)
}

// Trips measures round trips for a duration, and returns the time of each in us.
func (p *Path) Trips(duration time.Duration) ([]float64, error) {
	pair, err := traffic.Connect(p.Client, p.Server, netip.AddrPortFrom(p.Address, TripPort))
	if err != nil {
		return nil, err
	}
	defer pair.Close()
	return pair.PingPong(duration)
}
