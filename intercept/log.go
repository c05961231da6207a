// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"sync/atomic"
	"time"

	"github.com/kerb-edge/kerb/sdk/histogram"
)

// Stats are the statistics of a receiver. The first four count packets of the class, for all its receivers together.
type Stats struct {
	Received, Lost    uint64
	Late              uint64 // received after the deadline
	Longest, Deadline time.Duration
	Slept, Rested     uint64 // number of sleeps for a packet, and of rests that leave the CPU to other threads
	Spun              uint64 // polls of an empty ring
	Preemptions       uint64 // number of times that other threads kept the CPU for more than 0.5 ms
}

// recordPackets counts the delays of a batch of packets. It logs only the first late packet: later ones are late
// because of it.
func (r *Receiver) recordPackets(packets []Packet) {
	l, deadline, noted := &r.state.Log, r.state.Deadline, false
	for i := range packets {
		p := &packets[i]
		delay := uint64(max(p.Received-p.Sent, 0))
		r.wait.arrived(p.Sent)
		l.Delay[histogram.Bucket(delay, buckets)]++
		l.Longest = max(l.Longest, delay)
		l.Missed += p.Lost
		if deadline == 0 || delay <= deadline {
			continue
		}
		l.Late++
		if !noted {
			r.recordLate(p, len(packets)-i-1)
		}
		noted = true
	}
	l.Received += uint64(len(packets))
}

// recordLate logs a late packet with the state of the system, once per batch, since this takes microseconds.
func (r *Receiver) recordLate(p *Packet, queued int) {
	l, now := &r.state.Log, sampleThread(r.schedstat)
	cpu := currentCPU()
	waited := now.waited - r.before.waited
	if r.before.waited == 0 { // not sampled
		waited = 0
	}
	l.Last[l.Lates%lates] = lateEntry{Seq: p.Seq, T1: uint64(p.Sent), T2: uint64(p.Received), Waited: waited,
		CPU1: p.cpu, CPU2: cpu, PID1: p.pid, Queued: uint32(queued), Voluntary: uint32(now.voluntary - r.before.voluntary),
		Involuntary: uint32(now.involuntary - r.before.involuntary), Comm1: threadName(p.pid)}
	r.before = now
	atomic.AddUint64(&l.Lates, 1)
}

// Stats returns the statistics so far.
func (r *Receiver) Stats() Stats {
	s := r.stats
	if r.ring == nil {
		return s
	}
	l := &r.state.Log
	s.Received, s.Lost, s.Late = l.Received, l.Missed, l.Late
	s.Longest, s.Deadline = time.Duration(l.Longest), time.Duration(r.state.Deadline)
	return s
}
