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
	firstRest    = 120 // of 1000
	littleRest   = 30
	beforeOthers = 250
	oneOfMany    = 600
	maxStrays    = 4

	never = int64(1) << 60
	us    = int64(time.Microsecond)

	worth    = 30 * us
	mostSlip = 200 * us
	lostCPU  = 500 * us
	fastStep = 100_000 * us
	slowStep = 10_000_000 * us
)

// waiter is struct wait of lib/intercept/wait.c, where the reasons are told. A test compares them step by step.
type waiter struct {
	mode            Wait
	reach, patience int64
	least, most     int64

	last, gap, spread int64
	strays            int
	slip, slipSpread  int64
	rest              int64
	eased, step       int64
	running           int64
}

func newWaiter(mode Wait, reach, patience time.Duration, s standing) *waiter {
	w := &waiter{mode: mode, reach: int64(reach), patience: int64(patience), gap: never, slip: 50 * us, slipSpread: 10 * us,
		most: beforeOthers, step: fastStep}
	switch s {
	case realtime:
		w.least = firstRest
	case ordinary:
		w.most = oneOfMany
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

func (w *waiter) arrived(at int64) {
	gap, first := max(at-w.last, 0), w.last == 0
	w.last = max(at, w.last)
	if first {
		return
	}
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

func (w *waiter) restLength() int64 { return 40*us + 150*us*w.rest/1000*w.rest/1000 }
func (w *waiter) runLength() int64  { return w.restLength() * (1000 - w.rest) / w.rest }

func (w *waiter) ease(now int64) {
	if w.rest <= w.least || now < w.eased+w.step {
		return
	}
	w.eased = now
	w.rest -= w.rest / 4
	if w.rest <= max(littleRest, w.least) {
		w.rest = w.least
		w.step = max(w.step/2, fastStep)
	}
}

func (w *waiter) spin(now int64) step {
	w.ease(now)
	if w.rest == 0 || now-w.running < w.runLength() {
		return step{kind: stepSpin}
	}
	return step{stepRest, now + w.restLength() - min(w.slip, w.restLength()-us)}
}

func (w *waiter) next(now int64) step {
	switch {
	case w.mode == Spin:
		return step{kind: stepSpin}
	case w.mode == Sleep || w.last == 0:
		return step{kind: stepSleep}
	}
	margin := min(w.slip+3*w.slipSpread, mostSlip)
	due, early, late := w.last+w.gap, margin+2*w.spread, margin+4*w.spread
	often, regular := w.gap < w.reach, early+late < w.gap && early+late < w.reach
	switch {
	case w.patience > 0 && now < w.last+max(w.patience, w.reach):
		return step{stepRest, now + w.patience}
	case regular && now+early+worth < due:
		return step{stepDoze, due - early}
	case regular && now < due+late:
		return step{kind: stepSpin} // dozing leaves others enough
	case often && now < due+w.gap:
		return w.spin(now)
	}
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
		track(&w.slip, &w.slipSpread, now-asked)
	}
}

func (w *waiter) preempted(now int64) {
	if now < w.eased+4*w.step {
		w.step = min(2*w.step, slowStep)
	}
	w.rest = min(w.rest+max(firstRest, w.rest/2), w.most)
	w.eased, w.running = now, now
}
