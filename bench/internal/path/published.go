// SPDX-License-Identifier: Apache-2.0

package path

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

// Parameters of the published experiment: handshakes of a measurement, and the length of its streams.
const (
	publishedConnects = 15
	publishedStream   = 20 * time.Second
)

// MeasurePublished makes one measurement of Riegel 2024, with the length of streams scaled by the run's scale. It keeps
// the individual values of all rounds for the work's figures.
func (p *Path) MeasurePublished(r *bench.Run, config, load string) ([]bench.Sample, error) {
	length := max(time.Second, time.Duration(r.Scale*float64(publishedStream))).Round(time.Second)
	seconds := strconv.Itoa(int(length.Seconds()))
	connects, err := traffic.Connects(p.Client, p.Server, netip.AddrPortFrom(p.Address, TripPort), publishedConnects)
	if err != nil {
		return nil, fmt.Errorf("latency: %w", err)
	}
	thin, err := p.run("-u", "-b", "1M", "-l", "1000", "-t", seconds)
	if err != nil {
		return nil, fmt.Errorf("jitter: %w", err)
	}
	full, err := p.run("-C", "cubic", "-t", seconds)
	if err != nil {
		return nil, fmt.Errorf("throughput: %w", err)
	}
	costs, err := p.costs(500*time.Millisecond, length)
	if err != nil {
		return nil, fmt.Errorf("CPU: %w", err)
	}
	jitter, rate := thin.End.Sum.Jitter*1e3, full.End.Received.Rate/1e9
	r.Keep(config, load, "connect", "us", connects)
	r.Keep(config, load, "jitter", "us", []float64{jitter})
	r.Keep(config, load, "throughput", "Gbit/s", []float64{rate})
	samples := append(bench.MedianAnd99("connect", "us", connects), bench.P50("jitter", "us", jitter),
		bench.P50("throughput", "Gbit/s", rate))
	return append(samples, costs...), nil
}
