// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
	"github.com/kerb-edge/kerb/internal/packet"
)

// The sweep doubles the rate until events are lost, and then halves the gap (in the logarithm) a few times.
const (
	lowestRate   = 4_000
	highestRate  = 1 << 22
	bisections   = 4
	offerTime    = time.Second
	offerQuick   = 200 * time.Millisecond
	bisectQuick  = 1
	burstsSecond = 1000
	drainLimit   = 10 * time.Second
)

// eventRate makes the module send events by test runs of its chain, since real packets would take CPU time from the
// reader. The measured rate is that of reading up to the last event, so that events in the ring when sending ends do
// not raise it.
func (s *subject) eventRate(ctx context.Context, r *bench.Run) error {
	if !s.load.events {
		return nil
	}
	module := s.load.modules[len(s.load.modules)-1].Metadata.Name
	p, err := s.Chain("ingress", 0)
	if err != nil {
		return err
	}
	defer p.Close()
	o := &offer{subject: s, module: module, program: p, duration: offerTime}
	steps := bisections
	if r.Quick {
		o.duration, steps = offerQuick, bisectQuick
	}
	rate, err := sweep(steps, func(rate float64) (float64, bool, error) {
		return o.twice(ctx, rate)
	})
	if o.unaccounted > 0 {
		r.Invalidate("%s: the control plane did not read %d of the events that were sent", module, o.unaccounted)
	}
	if err != nil {
		return err
	}
	s.add("event_rate", "1/s", rate)
	return nil
}

// sweep returns the highest rate without loss. try receives the offered rate and returns the rate of reading.
func sweep(bisections int, try func(rate float64) (read float64, lost bool, err error)) (best float64, err error) {
	good, bad := 0.0, 0.0
	step := func(rate float64) error {
		read, lost, err := try(rate)
		if lost {
			bad = rate
		} else if err == nil {
			good, best = rate, max(best, read)
		}
		return err
	}
	for rate := float64(lowestRate); bad == 0 && rate <= highestRate; rate *= 2 {
		if err := step(rate); err != nil {
			return 0, err
		}
	}
	if good == 0 {
		return 0, fmt.Errorf("events are lost even at %d per second", lowestRate)
	}
	for range bisections {
		if bad == 0 {
			break
		}
		if err := step(math.Sqrt(good * bad)); err != nil {
			return 0, err
		}
	}
	return best, nil
}

// offer sends events of a module at a rate.
type offer struct {
	*subject
	module      string
	program     *ebpf.Program
	duration    time.Duration
	unaccounted uint64
}

// twice retries a rate, since other virtual machines may have stopped the reader the first time.
func (o *offer) twice(ctx context.Context, rate float64) (read float64, lost bool, err error) {
	for range 2 {
		if err := ctx.Err(); err != nil {
			return 0, false, err
		}
		if read, lost, err = o.once(rate); err != nil || !lost {
			break
		}
	}
	return read, lost, err
}

func (o *offer) once(rate float64) (read float64, lost bool, err error) {
	before, err := o.count()
	if err != nil {
		return 0, false, err
	}
	begin := time.Now()
	if err := traffic.RunOnCPU(0, func() error { return o.send(rate) }); err != nil {
		return 0, false, err
	}
	after, err := o.drain(before)
	took := time.Since(begin)
	if err != nil {
		return 0, false, err
	}
	sent, got := after.sent-before.sent, after.read-before.read
	o.unaccounted += sent - min(sent, got)
	return float64(got) / took.Seconds(), after.lost > before.lost, nil
}

// send makes test runs in 1,000 bursts per second.
func (o *offer) send(rate float64) error {
	frame, err := eventFrame()
	if err != nil {
		return err
	}
	pacer := traffic.NewPacer(time.Second / burstsSecond)
	for range int(o.duration.Seconds() * burstsSecond) {
		if _, err := o.program.Run(&ebpf.RunOptions{Data: frame, Repeat: uint32(rate / burstsSecond)}); err != nil {
			return fmt.Errorf("test run: %w", err)
		}
		pacer.Wait()
	}
	return nil
}

// counts are events since the module was deployed: sent and lost as counted by the data plane, read as counted by the
// control plane.
type counts struct{ sent, lost, read uint64 }

func (o *offer) count() (c counts, err error) {
	m, err := o.subject.module(o.module)
	if err != nil {
		return c, err
	}
	if m.Status.Events == nil {
		return c, fmt.Errorf("module %s has no event counter", o.module)
	}
	c.sent, c.lost = m.Status.Events.Sent, m.Status.Events.Lost
	c.read, err = o.readCount()
	return c, err
}

func (o *offer) readCount() (uint64, error) {
	var answer struct{ Read uint64 }
	err := o.Get("/v1/modules/"+o.module+"/events?n=1", &answer)
	return answer.Read, err
}

// drain waits, with a timeout, until the control plane has read the events sent since before.
func (o *offer) drain(before counts) (counts, error) {
	c, err := o.count()
	for deadline := time.Now().Add(drainLimit); err == nil && c.read-before.read < c.sent-before.sent &&
		time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
		c.read, err = o.readCount()
	}
	return c, err
}

// eventFrame returns an IPv4 UDP packet to the watched port.
func eventFrame() ([]byte, error) {
	f := packet.Fields{Src: netip.AddrFrom4([4]byte{10, 0, 0, 1}), Dst: netip.AddrFrom4([4]byte{10, 0, 0, 2}),
		UDP: &packet.Ports{Src: 40000, Dst: eventPort}}
	return f.Frame()
}
