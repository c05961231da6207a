// SPDX-License-Identifier: Apache-2.0

package path

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
	"github.com/kerb-edge/kerb/sdk"
)

// The sweep offers UDP at rising rates, in Mbit/s of payload, until the path loses packets: in equal steps up to
// sweepLinear, as in Riegel 2024, and above by a factor. One-way latency is the time from the sender's system call to
// the return of the receiver's, on the same clock.
const (
	sweepStep      = 50
	sweepQuickStep = 475
	sweepLinear    = 1000
	sweepFactor    = 1.25
	sweepMax       = 200_000

	publishedRate = 60 * time.Second // of each rate

	datagram    = 1400 // bytes of payload: the smallest MTU here is 1430
	stampOffset = 8    // after the step's number: the sender's clock
	// maximum number of datagrams per system call
	flowBatch = 64
	// The receiver's buffer: 20 ms at 1 Gbit/s, so that a busy CPU does not look like loss on the path.
	flowBuffer = 8 << 20
	// flowGap is the minimum time between two system calls of the sender.
	flowGap = 50 * time.Microsecond
	// flowWait is the time that a receiver waits for the last packets.
	flowWait = 200 * time.Millisecond
	// Number of latencies that are kept per step.
	latenciesKept = 200_000

	lossLimit = 0.01 // fraction of lost packets at which the bottleneck is reached
	rateLimit = 0.95 // fraction of the rate that the sender must reach
)

// sweepRates returns the steps of a sweep.
func sweepRates(quick bool) (all []float64) {
	step := float64(sweepStep)
	if quick {
		step = sweepQuickStep
	}
	for rate := float64(sweepStep); rate <= sweepLinear; rate += step {
		all = append(all, rate)
	}
	for rate := sweepLinear * sweepFactor; rate <= sweepMax; rate *= sweepFactor {
		all = append(all, rate)
	}
	return all
}

// flow is one step of a sweep.
type flow struct {
	sent, received uint64
	refused        uint64 // dropped by the receiver's full buffer, not by the path
	latencies      []float64
	took           time.Duration
}

// lost returns the fraction of packets that the path lost.
func (f flow) lost() float64 {
	return float64(f.sent-min(f.sent, f.received+f.refused)) / float64(max(1, f.sent))
}

// limitedByGenerator reports whether the rate exceeds the capacity of sender or receiver.
func (f flow) limitedByGenerator(rate float64) bool {
	return float64(f.sent) < rateLimit*packetsPerSecond(rate)*f.took.Seconds() ||
		float64(f.refused) > lossLimit*float64(f.sent)
}

func packetsPerSecond(mbits float64) float64 { return mbits * 1e6 / 8 / datagram }

// offer sends UDP at a rate in Mbit/s for a duration. number distinguishes its packets from those of other steps.
func (p *Path) offer(rate float64, length time.Duration, number uint64) (flow, error) {
	o := &udpLoad{path: p, number: number, rate: packetsPerSecond(rate), length: length}
	err := o.run()
	return o.flow, err
}

// tryRate repeats a step whose rate the generator did not reach, since another program may have used its CPU.
func (p *Path) tryRate(rate float64, length time.Duration, number *uint64) (f flow, err error) {
	for range 3 {
		*number++
		if f, err = p.offer(rate, length, *number); err != nil || !f.limitedByGenerator(rate) {
			break
		}
	}
	return f, err
}

type udpLoad struct {
	flow
	path    *Path
	number  uint64
	rate    float64 // packets a second
	length  time.Duration
	out, in *traffic.Batch
	ended   atomic.Bool // the sender
}

func (o *udpLoad) run() error {
	at := netip.AddrPortFrom(o.path.Address, TripPort)
	err := o.path.Server.Do(func() (err error) {
		any := netip.AddrPortFrom(netip.IPv4Unspecified(), TripPort)
		if o.in, err = traffic.NewReceiver(any, datagram, flowBatch, flowWait); err != nil {
			return err
		}
		return o.in.SetBuffer(flowBuffer)
	})
	if err != nil {
		return fmt.Errorf("receiver: %w", err)
	}
	defer o.in.Close()
	err = o.path.Client.Do(func() (err error) {
		o.out, err = traffic.NewSender(at, datagram, flowBatch)
		return err
	})
	if err != nil {
		return fmt.Errorf("sender: %w", err)
	}
	defer o.out.Close()
	before, err1 := o.path.socketLosses()
	received := make(chan error, 1)
	go func() { received <- traffic.RunOnCPU(1, o.receive) }()
	err2 := traffic.RunOnCPU(0, o.send)
	o.ended.Store(true)
	err3 := <-received
	after, err4 := o.path.socketLosses()
	o.refused = after - before
	return errors.Join(err1, err2, err3, err4)
}

func (p *Path) socketLosses() (n uint64, err error) {
	err = p.Server.Do(func() error {
		l, err := traffic.ReadLosses()
		n = l.Socket
		return err
	})
	return n, err
}

// send sends packets that are due, in batches.
func (o *udpLoad) send() error {
	start := time.Now()
	pacer := traffic.NewPacer(max(flowGap, time.Duration(float64(time.Second)/o.rate)))
	for {
		elapsed := time.Since(start)
		if o.took = elapsed; elapsed >= o.length {
			return nil
		}
		due := int(elapsed.Seconds()*o.rate) + 1 - int(o.sent)
		for due > 0 {
			n := min(due, flowBatch)
			now := sdk.Monotonic()
			for i := range n {
				binary.NativeEndian.PutUint64(o.out.Datagram(i), o.number)
				binary.NativeEndian.PutUint64(o.out.Datagram(i)[stampOffset:], now)
			}
			n, err := o.out.Send(n)
			if err != nil && !errors.Is(err, unix.ENOBUFS) {
				return fmt.Errorf("send: %w", err)
			}
			o.sent += uint64(n)
			due -= max(n, 1)
			if time.Since(start) >= o.length {
				break
			}
		}
		pacer.Wait()
	}
}

// receive returns when the sender has finished and no more packets arrive.
func (o *udpLoad) receive() error {
	stride := uint64(o.rate*o.length.Seconds()/latenciesKept) + 1
	for {
		ended := o.ended.Load()
		n, err := o.in.Receive()
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		now := sdk.Monotonic()
		for i := range n {
			d := o.in.Datagram(i)[:o.in.Size(i)]
			if len(d) != datagram || binary.NativeEndian.Uint64(d) != o.number {
				continue // of an earlier step
			}
			if o.received++; o.received%stride == 0 {
				sent := binary.NativeEndian.Uint64(d[stampOffset:])
				o.latencies = append(o.latencies, float64(now-sent)/1e3)
			}
		}
		if n == 0 && ended {
			return nil
		}
	}
}

// RateLoad returns the load of a step of a sweep.
func RateLoad(load string, rate float64) string { return load + "/" + strconv.Itoa(int(rate+0.5)) }

// sweepLength returns the time for which each rate is offered.
func sweepLength(r *bench.Run) time.Duration {
	switch {
	case r.Scale > 0:
		return max(200*time.Millisecond, time.Duration(r.Scale*float64(publishedRate)))
	case r.Quick:
		return 200 * time.Millisecond
	}
	return 2 * time.Second
}

// sweep offers rising rates to all configs, each rate to all of them in turn, until each has reached its bottleneck, or
// the limit of sender or receiver (metric generator_limit).
func sweep(ctx context.Context, r *bench.Run, load string, ways []openConfig, number *uint64) error {
	best, over, unknown := map[string]float64{}, map[string]bool{}, map[string]uint64{}
	for _, rate := range sweepRates(r.Quick || r.Scale > 0 && r.Scale < 0.01) {
		for _, w := range ways {
			if over[w.config] {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			r.Progress("%s: %.0f Mbit/s, %s", load, rate, w.config)
			f, err := w.path.tryRate(rate, sweepLength(r), number)
			if err != nil {
				return fmt.Errorf("%s, %.0f Mbit/s: %w", w.config, rate, err)
			}
			if f.limitedByGenerator(rate) {
				over[w.config], unknown[w.config] = true, 1
				continue
			}
			r.Record(w.config, RateLoad(load, rate), f.samples()...)
			if f.lost() > lossLimit {
				over[w.config] = true
			} else {
				best[w.config] = rate
			}
		}
	}
	for _, w := range ways {
		r.Record(w.config, load, bench.P50("bottleneck", "Mbit/s", best[w.config]),
			bench.Count("generator_limit", unknown[w.config]))
	}
	return nil
}

func (f flow) samples() []bench.Sample {
	samples := []bench.Sample{bench.P50("loss", "%", 100*f.lost())}
	if len(f.latencies) > 0 {
		samples = append(samples, bench.MedianAnd99("oneway", "us", f.latencies)...)
	}
	return samples
}
