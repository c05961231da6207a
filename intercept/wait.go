// SPDX-License-Identifier: Apache-2.0

package intercept

import "time"

// Wait is how a receiver waits for packets.
type Wait int

const (
	// Adaptive spins only shortly before the next packet is due and sleeps otherwise: the median latency of spinning
	// without occupying the CPU.
	Adaptive Wait = iota
	// Spin polls the ring and occupies the CPU.
	Spin
	// Sleep blocks: each packet costs a wake-up.
	Sleep
)

type stepKind int

const (
	stepSpin  stepKind = iota // poll again at once
	stepRest                  // sleep until a time; packets do not end it
	stepDoze                  // sleep until a time or a packet, whichever is first
	stepSleep                 // sleep until a packet
)

// step is what to do next. until is a time of CLOCK_MONOTONIC in ns, for a rest or a doze.
type step struct {
	kind  stepKind
	until int64
}

// standing is how the scheduler treats the thread.
type standing int

const (
	ordinary standing = iota
	preferred
	realtime
)

const (
	realtimeRest   = 100 // of 1000
	firstRest      = 70
	freeRest       = 30
	negligibleRest = 20
	maxRest        = 250
	maxStrays      = 4
	defaultAwake   = 975 // of 1000

	never = int64(1) << 60
	us    = int64(time.Microsecond)

	minSleep     = 30 * us
	burstGap     = 15 * us
	maxBurst     = 200 * us
	restDelay    = 5 * us
	minLead      = 2 * us
	minRest      = 2 * us
	minGain      = 5 * us
	heldUp       = 500 * us
	ordinaryEase = 12_500 * us
	minEase      = 100_000 * us
	maxEase      = 10_000_000 * us
)

// waiter is struct wait of lib/intercept. wait.h documents the fields, wait.c the constants. A test compares both step
// by step.
type waiter struct {
	goals
	ordinary bool
	least    int64

	last, first int64
	length      int64
	gap, spread int64
	strays      int
	lead        int64
	dozed       bool
	slip        int64
	gain        int64
	rest        int64
	eased, step int64
	running     int64
}

type goals struct {
	mode            Wait
	reach, patience int64
	awake           int64 // of 1000
}

// newWaiter starts with typical means, which some hundred packets replace.
func newWaiter(g goals, s standing) *waiter {
	w := &waiter{goals: g, gap: never, lead: 40 * us, slip: 50 * us, gain: 20 * us, ordinary: s == ordinary,
		step: minEase}
	if s == realtime {
		w.least = realtimeRest
	}
	w.rest = w.least
	return w
}

// updateMean updates a mean and a mean deviation like the RTT estimator of RFC 6298, section 2.
func updateMean(mean, spread *int64, sample int64) {
	d := sample - *mean
	*mean += d / 8
	*spread += (max(d, -d) - *spread) / 4
}

// updateLead estimates the lead as a quantile of how early packets and how late timers are: it steps up if the packet
// came before the thread ran, and down otherwise, by sizes that cancel out when the share awake of packets finds the
// thread running. Without a timed sleep it decays, so that one is tried again from time to time.
func (w *waiter) updateLead(at int64) {
	step := w.lead / 1024
	switch {
	case !w.dozed:
		w.lead -= step / 4
	case at < w.running:
		w.lead += step * w.awake / (1000 - w.awake)
	default:
		w.lead -= step
	}
	w.lead = max(min(w.lead, w.reach/2), minLead)
	w.dozed = false
}

// updateGap updates the mean gap between the first packets of two bursts. It ignores gaps over eight times the mean,
// unless several follow each other.
func (w *waiter) updateGap(gap int64) {
	long := gap > 8*w.gap
	if long {
		w.strays++
	}
	switch {
	case w.gap >= never || long && w.strays >= maxStrays:
		w.gap, w.spread, w.strays = gap, gap/2, 0
	case !long:
		updateMean(&w.gap, &w.spread, gap)
		w.strays = 0
	}
}

// arrived updates the estimates for a packet with T1 at. Packets with small gaps are one burst, of which the first
// counts.
func (w *waiter) arrived(at int64) {
	first, last := w.first, w.last
	at = max(at, last)
	w.last = at
	if last > 0 && at < last+burstGap && at < first+maxBurst {
		return
	}
	w.first = at
	if last == 0 {
		return
	}
	w.length += (last - first - w.length) / 8
	w.updateLead(at)
	w.updateGap(at - first)
}

// burstEnd returns when the last burst is expected to be over, by the mean length of bursts and a margin.
func (w *waiter) burstEnd() int64 {
	if w.length == 0 {
		return w.first
	}
	return w.first + w.length + w.length/4 + 3*us
}

func (w *waiter) restLength() int64 { return 40*us + 150*us*w.rest/1000*w.rest/1000 }

// gapRestLength returns the length of a rest after a burst that ends before the next burst, and so delays no packet; 0
// if the gap is too short.
func (w *waiter) gapRestLength() int64 {
	begin, due := w.burstEnd()+restDelay, w.first+w.gap
	if w.gap >= w.reach || begin+w.slip+minRest >= due {
		return 0
	}
	return min(due-begin, w.restLength())
}

// reduceRest reduces the share of rest by a quarter from time to time. An ordinary thread, which sleeps for each packet
// meanwhile, ends it at once, to find out whether it has the CPU to itself.
func (w *waiter) reduceRest(now int64) {
	if w.rest <= w.least || now < w.eased+w.step {
		return
	}
	w.eased = now
	w.rest -= w.rest / 4
	if w.ordinary || w.rest <= max(negligibleRest, w.least) {
		w.rest = w.least
	}
}

// spinOrRest returns stepSpin, or stepRest if a rest is due: after a burst if that ends soon.
func (w *waiter) spinOrRest(now int64) step {
	run, ran, length, rest := never, now-w.running, w.gapRestLength(), w.rest
	if length > 0 && !w.ordinary {
		rest = max(rest, freeRest)
	}
	if rest > 0 {
		run = w.gain * (1000 - rest) / rest
	}
	if ran < run || length > 0 && ran < 2*run && (now < w.burstEnd() || now > w.burstEnd()+restDelay) {
		return step{kind: stepSpin}
	}
	if length == 0 {
		length = w.restLength()
	}
	return step{stepRest, now + length - min(w.slip, length-us)}
}

// next returns what to do while there is no packet: doze until the next one is due if the stream is regular, spin if
// one may arrive at any time, and sleep otherwise.
func (w *waiter) next(now int64) step {
	switch {
	case w.mode == Spin:
		return step{kind: stepSpin}
	case w.mode == Sleep || w.last == 0:
		return step{kind: stepSleep}
	}
	due, late, least := w.first+w.gap, w.lead+4*w.spread, w.lead+minSleep-min(w.slip, minSleep-us)
	regular, often := w.length+least < w.gap && w.lead+late < w.reach, w.gap < w.reach
	crowded := w.ordinary && w.rest > 0
	w.reduceRest(now)
	if !regular {
		late = w.gap
	}
	switch {
	case w.patience > 0 && now < w.last+max(w.patience, w.reach):
		return step{stepRest, now + w.patience}
	case regular && now < w.burstEnd() && now < w.last+burstGap:
		return step{kind: stepSpin}
	case regular && !crowded && now+least < due:
		w.dozed = true
		return step{stepDoze, due - w.lead}
	case !crowded && (regular || often) && now < due+late:
		return w.spinOrRest(now)
	}
	w.dozed = false
	return step{kind: stepSleep}
}

// woke updates the estimates after a sleep. asked is the time for which its timer was set, or 0 if a packet ended it.
func (w *waiter) woke(asked, now int64) {
	w.running = now
	switch {
	case asked == 0 || now < asked:
	case now-asked > heldUp:
		w.preempted(now)
	default:
		w.slip += (now - asked - w.slip) / 8
	}
}

// preempted increases the share of rest after another thread has preempted this one. Reducing the rest too early costs
// a tick, so the interval doubles each time that this happens.
func (w *waiter) preempted(now int64) {
	switch {
	case now < w.eased+4*w.step:
		w.step = min(2*w.step, maxEase)
	case w.ordinary:
		w.step = ordinaryEase
	default:
		w.step = minEase
	}
	w.rest = min(w.rest+max(firstRest, w.rest/2), maxRest)
	w.eased, w.running = now, now
}

func (w *waiter) rested(gain int64) { w.gain = max(w.gain+(min(gain, heldUp)-w.gain)/8, minGain) }
