// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// Quantiles of a histogram of times: the upper ends of their buckets, which are right to a fourth.
type Quantiles struct {
	Count uint64 `json:"count"`
	P50   uint64 `json:"p50Nanoseconds"`
	P99   uint64 `json:"p99Nanoseconds"`
	P999  uint64 `json:"p999Nanoseconds"`
	Max   uint64 `json:"maxNanoseconds"`
}

func quantiles(h sdk.Histogram) Quantiles {
	return Quantiles{Count: h.Count(), P50: h.Quantile(0.5), P99: h.Quantile(0.99), P999: h.Quantile(0.999),
		Max: h.Quantile(1)}
}

// ClassReport is a class with the counters of its packets.
type ClassReport struct {
	Name      string `json:"name"`
	Direction string `json:"direction"`
	Action    string `json:"action"`
	Stopped   bool   `json:"stopped,omitempty"` // by its consumer
	Packets   uint64 `json:"packets"`
	Bytes     uint64 `json:"bytes"`
	Delivered uint64 `json:"delivered"`
	Lost      uint64 `json:"lost"`   // no room in the ring
	Unread    uint64 `json:"unread"` // were to be stolen, but passed: no consumer, or one that does not read
	Unmarked  uint64 `json:"unmarked,omitempty"`
	Answered  uint64 `json:"answered,omitempty"`
	Fallbacks uint64 `json:"fallbacks,omitempty"` // answered in the program's place
	Forwarded uint64 `json:"forwarded,omitempty"`
	// Unforwarded counts packets that were to be forwarded, by why they were not.
	Unforwarded map[string]uint64 `json:"unforwarded,omitempty"`
	Gap         Quantiles         `json:"gap"` // between packets
	Opens       bool              `json:"opens"`
	Program     *Program          `json:"program,omitempty"` // that has it open
}

// Program is a consumer, by what it says in its page.
type Program struct {
	PID       int       `json:"pid"`
	Since     time.Time `json:"since"`
	Received  uint64    `json:"received"`
	Missed    uint64    `json:"missed"` // lost packets that were reported to it
	Late      uint64    `json:"late"`
	Deadline  uint64    `json:"deadlineNanoseconds,omitempty"`
	Delay     Quantiles `json:"delay"`     // T2 - T1; the maximum is exact
	Heartbeat uint64    `json:"heartbeat"` // ns of CLOCK_MONOTONIC
}

func readCounts(m sdk.Maps, c *class) (countsEntry, error) {
	return sdk.Sum[countsEntry](m, mapCounts, c.identity())
}

// NoteName implements sdk.NoteNamer: the name of a class by its index.
func (f *running) NoteName(_ string, class uint64) string {
	if class >= uint64(len(f.Classes)) {
		return ""
	}
	return f.Classes[class].Name
}

// report reads the counters and state pages of all classes, in the order of the configuration. A class without a ring
// has no Program.
func (f *Intercept) report(m sdk.Maps) ([]ClassReport, error) {
	pages, err := f.mapPages(m)
	if err != nil {
		return nil, err
	}
	defer pages.close()
	out := []ClassReport{}
	for _, c := range f.Classes {
		n, err := readCounts(m, c)
		if err != nil {
			return nil, err
		}
		r := ClassReport{Name: c.Name, Direction: c.Direction, Action: c.Action, Packets: n.Packets, Bytes: n.Bytes,
			Delivered: n.Delivered,
			Lost:      n.Lost, Unread: n.Unread, Unmarked: n.Unmarked, Answered: n.Answered, Fallbacks: n.Fallbacks,
			Forwarded: n.Forwarded, Unforwarded: n.unforwarded(),
			Gap: quantiles(n.Gaps[:]), Opens: c.slot != noRing}
		if c.slot != noRing {
			s := pages.state(c.slot).copy()
			r.Stopped, r.Program = s.Stopped != 0, f.program(c, s)
		}
		out = append(out, r)
	}
	return out, nil
}

func (f *Intercept) program(c *class, s *state) *Program {
	who := f.consumers.of(c.Name)
	if who == nil {
		return nil
	}
	delay := quantiles(s.Delay[:])
	delay.Max = s.Longest
	return &Program{PID: who.pid, Since: who.since, Received: s.Received, Missed: s.Missed, Late: s.Late,
		Deadline: s.Deadline, Delay: delay, Heartbeat: s.Heartbeat}
}

// LatePacket is an entry of the flight recorder: a packet that its program received after the deadline, with the state
// of the system.
type LatePacket struct {
	Class       string `json:"class"`
	Seq         uint64 `json:"seq"`
	T1          uint64 `json:"t1"`                // ns of CLOCK_MONOTONIC: the kernel part saw it
	Delay       uint64 `json:"delayNanoseconds"`  // T2 - T1
	Waited      uint64 `json:"waitedNanoseconds"` // that the program could have run and did not
	KernelCPU   uint32 `json:"kernelCPU"`
	ProgramCPU  uint32 `json:"programCPU"`
	Running     uint32 `json:"running"` // thread that the kernel part interrupted, 0: idle, or not known
	Command     string `json:"command,omitempty"`
	Queued      uint32 `json:"queued"` // records that waited behind it
	Voluntary   uint32 `json:"voluntary"`
	Involuntary uint32 `json:"involuntary"`
}

// late are the late packets of all classes, the last first in each.
func (f *Intercept) late(m sdk.Maps) ([]LatePacket, error) {
	pages, err := f.mapPages(m)
	if err != nil {
		return nil, err
	}
	defer pages.close()
	out := []LatePacket{}
	for _, c := range f.Classes {
		if c.slot == noRing {
			continue
		}
		s := pages.state(c.slot).copy()
		for i := range min(s.Lates, lates) {
			out = append(out, s.Last[(s.Lates-1-i)%lates].report(c.Name))
		}
	}
	return out, nil
}

func (l *late) report(class string) LatePacket {
	return LatePacket{Class: class, Seq: l.Seq, T1: l.T1, Delay: l.T2 - l.T1, Waited: l.Waited, KernelCPU: l.CPU1,
		ProgramCPU: l.CPU2,
		Running:    l.PID1, Command: sdk.Printable(l.Comm1[:]), Queued: l.Queued, Voluntary: l.Voluntary,
		Involuntary: l.Involuntary}
}

// Collect implements sdk.Collector.
func (f *running) Collect() ([]sdk.Sample, error) {
	classes, err := f.report(f.live.Maps)
	if err != nil {
		return nil, err
	}
	var out []sdk.Sample
	for _, c := range classes {
		out = append(out, c.samples()...)
	}
	return out, nil
}

// samples returns the class's metrics, without a label for addresses or programs. The delay quantiles exist only while
// a program has the class open.
func (c *ClassReport) samples() (out []sdk.Sample) {
	labels := map[string]string{"class": c.Name}
	count := func(name, help string, n uint64) {
		out = append(out, sdk.Sample{Name: name, Help: help, Counter: true, Labels: labels, Value: float64(n)})
	}
	gauge := func(name, help string, labels map[string]string, v float64) {
		out = append(out, sdk.Sample{Name: name, Help: help, Labels: labels, Value: v})
	}
	count("packets_total", "Packets of the class.", c.Packets)
	count("bytes_total", "Bytes of these, with their link header.", c.Bytes)
	count("delivered_total", "Packets delivered to a program.", c.Delivered)
	count("lost_total", "Packets that found no room in the class's ring.", c.Lost)
	count("unread_total", "Packets that were to be stolen, but passed, as no program reads.", c.Unread)
	count("answered_total", "Packets answered in the kernel.", c.Answered)
	count("fallbacks_total", "Packets answered in the kernel, as the program did not read in time.", c.Fallbacks)
	count("forwarded_total", "Packets sent on to another host or interface.", c.Forwarded)
	for why, n := range c.Unforwarded {
		out = append(out, sdk.Sample{Name: "unforwarded_total", Counter: true,
			Help:   "Packets that were to be forwarded and were not, by reason.",
			Labels: map[string]string{"class": c.Name, "reason": why}, Value: float64(n)})
	}
	p := c.Program
	if !c.Opens {
		return out
	}
	if p == nil {
		gauge("programs", "Programs that have the class open.", labels, 0)
		return out
	}
	gauge("programs", "Programs that have the class open.", labels, 1)
	count("late_total", "Packets that the program had after the class's deadline.", p.Late)
	for name, ns := range map[string]uint64{"0.5": p.Delay.P50, "0.99": p.Delay.P99, "0.999": p.Delay.P999,
		"1": p.Delay.Max} {
		gauge("delay_seconds", "Time from the kernel part to the program, by quantile, since the program has begun.",
			map[string]string{"class": c.Name, "quantile": name}, float64(ns)/1e9)
	}
	return out
}
