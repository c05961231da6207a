// SPDX-License-Identifier: Apache-2.0

package intercept

import "time"

// Wait is what a receiver does while there is no packet.
type Wait int

const (
	// Adaptive is as quick as spinning, and as little in the way of others as sleeping.
	Adaptive Wait = iota
	// Spin takes the whole CPU.
	Spin
	// Sleep has each packet wait for a wake-up.
	Sleep
)

type stepKind int

const (
	stepSpin  stepKind = iota // look again at once
	stepRest                  // sleep until a time; packets do not wake
	stepDoze                  // sleep until a time or a packet
	stepSleep                 // sleep until a packet
)

// step is what to do next; until is a time of CLOCK_MONOTONIC in ns, for a rest or a doze.
type step struct {
	kind  stepKind
	until int64
}

// standing is how the scheduler sees the thread.
type standing int

const (
	ordinary standing = iota
	preferred
	realtime
)

const (
	realtimeRest = 100 // of 1000
	firstRest    = 70
	freeRest     = 30
	littleRest   = 20
	mostRest     = 250
	maxStrays    = 4
	mostlyAwake  = 975 // of 1000

	never = int64(1) << 60
	us    = int64(time.Microsecond)

	worth        = 30 * us
	together     = 15 * us
	longestBurst = 200 * us
	behindBurst  = 5 * us
	leastLead    = 2 * us
	leastRest    = 2 * us
	leastGain    = 5 * us
	lostCPU      = 500 * us
	briefStep    = 12_500 * us
	fastStep     = 100_000 * us
	slowStep     = 10_000_000 * us
)

// waiter is struct wait of lib/intercept/wait.c, which documents the reasons. A test compares them step by step.
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

// newWaiter begins with the means of a machine that is not known yet; some hundred packets replace them.
func newWaiter(g goals, s standing) *waiter {
	w := &waiter{goals: g, gap: never, lead: 40 * us, slip: 50 * us, gain: 20 * us, ordinary: s == ordinary,
		step: fastStep}
	if s == realtime {
		w.least = realtimeRest
	}
	w.rest = w.least
	return w
}

// track moves a mean and a mean deviation, as RFC 6298 does.
func track(mean, spread *int64, sample int64) {
	d := sample - *mean
	*mean += d / 8
	*spread += (max(d, -d) - *spread) / 4
}

// aim learns the lead from what came of the last one: a quantile of how early packets and how late timers are, by
// steps up and down that cancel out when as many packets find this thread awake as are to. A lead that is too long for
// a sleep is tried again from time to time.
func (w *waiter) aim(at int64) {
	step := w.lead / 1024
	switch {
	case !w.dozed:
		w.lead -= step / 4
	case at < w.running:
		w.lead += step * w.awake / (1000 - w.awake)
	default:
		w.lead -= step
	}
	w.lead = max(min(w.lead, w.reach/2), leastLead)
	w.dozed = false
}

// beat learns from the first packet of a burst. A gap eight times the mean may be a pause; only some of them in a row
// mean that the stream has another rhythm.
func (w *waiter) beat(gap int64) {
	long := gap > 8*w.gap
	if long {
		w.strays++
	}
	switch {
	case w.gap >= never || long && w.strays >= maxStrays:
		w.gap, w.spread, w.strays = gap, gap/2, 0
	case !long:
		track(&w.gap, &w.spread, gap)
		w.strays = 0
	}
}

// arrived learns from a packet that the kernel got at a time, in ns. Packets close behind each other are one burst, of
// which the first counts.
func (w *waiter) arrived(at int64) {
	first, last := w.first, w.last
	at = max(at, last)
	w.last = at
	if last > 0 && at < last+together && at < first+longestBurst {
		return
	}
	w.first = at
	if last == 0 {
		return
	}
	w.length += (last - first - w.length) / 8
	w.aim(at)
	w.beat(at - first)
}

// over returns when the last burst is over, by the mean length of bursts and some room.
func (w *waiter) over() int64 {
	if w.length == 0 {
		return w.first
	}
	return w.first + w.length + w.length/4 + 3*us
}

func (w *waiter) restLength() int64 { return 40*us + 150*us*w.rest/1000*w.rest/1000 }

// room returns how long a rest is that begins behind a burst and ends before the next, and so delays nothing; 0 if
// there is none.
func (w *waiter) room() int64 {
	begin, due := w.over()+behindBurst, w.first+w.gap
	if w.gap >= w.reach || begin+w.slip+leastRest >= due {
		return 0
	}
	return min(due-begin, w.restLength())
}

// ease takes rest back by a quarter from time to time. An ordinary thread, which sleeps meanwhile, tries whether it
// has the CPU for itself.
func (w *waiter) ease(now int64) {
	if w.rest <= w.least || now < w.eased+w.step {
		return
	}
	w.eased = now
	w.rest -= w.rest / 4
	if w.ordinary || w.rest <= max(littleRest, w.least) {
		w.rest = w.least
	}
}

// spin returns a spin, or a rest if it is time for one: behind a burst if that comes soon enough.
func (w *waiter) spin(now int64) step {
	run, ran, length, rest := never, now-w.running, w.room(), w.rest
	if length > 0 && !w.ordinary {
		rest = max(rest, freeRest)
	}
	if rest > 0 {
		run = w.gain * (1000 - rest) / rest
	}
	if ran < run || length > 0 && ran < 2*run && (now < w.over() || now > w.over()+behindBurst) {
		return step{kind: stepSpin}
	}
	if length == 0 {
		length = w.restLength()
	}
	return step{stepRest, now + length - min(w.slip, length-us)}
}

// next returns what to do at a time at which there is no packet: doze until the next one is due where the stream is
// regular, spin where one may come at any time, and sleep otherwise.
func (w *waiter) next(now int64) step {
	switch {
	case w.mode == Spin:
		return step{kind: stepSpin}
	case w.mode == Sleep || w.last == 0:
		return step{kind: stepSleep}
	}
	due, late, least := w.first+w.gap, w.lead+4*w.spread, w.lead+worth-min(w.slip, worth-us)
	regular, often := w.length+least < w.gap && w.lead+late < w.reach, w.gap < w.reach
	crowded := w.ordinary && w.rest > 0
	w.ease(now)
	if !regular {
		late = w.gap
	}
	switch {
	case w.patience > 0 && now < w.last+max(w.patience, w.reach):
		return step{stepRest, now + w.patience}
	case regular && now < w.over() && now < w.last+together:
		return step{kind: stepSpin}
	case regular && !crowded && now+least < due:
		w.dozed = true
		return step{stepDoze, due - w.lead}
	case !crowded && (regular || often) && now < due+late:
		return w.spin(now)
	}
	w.dozed = false
	return step{kind: stepSleep}
}

// woke learns from the end of a sleep that was asked to end at a time; 0: a packet ended it.
func (w *waiter) woke(asked, now int64) {
	w.running = now
	switch {
	case asked == 0 || now < asked:
	case now-asked > lostCPU:
		w.preempted(now)
	default:
		w.slip += (now - asked - w.slip) / 8
	}
}

// preempted has more rest taken, as another thread has used the CPU meanwhile. To find out that it is still there
// costs a tick of the scheduler, so the attempts become rarer each time that one was too early.
func (w *waiter) preempted(now int64) {
	switch {
	case now < w.eased+4*w.step:
		w.step = min(2*w.step, slowStep)
	case w.ordinary:
		w.step = briefStep
	default:
		w.step = fastStep
	}
	w.rest = min(w.rest+max(firstRest, w.rest/2), mostRest)
	w.eased, w.running = now, now
}

func (w *waiter) rested(gain int64) { w.gain = max(w.gain+(min(gain, lostCPU)-w.gain)/8, leastGain) }
