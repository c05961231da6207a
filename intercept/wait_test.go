// SPDX-License-Identifier: Apache-2.0

package intercept

import "testing"

// replay simulates bursts of five packets on a machine whose timers are late by slip, whose packets wake within 20 us,
// and where going to sleep takes 20 us, in simulated time. It returns the number of packets that arrived while the
// waiter slept or rested, and the fraction of time that it slept.
func replay(w *waiter, bursts int, period, slip int64) (asleep int, slept float64) {
	begin := max(w.first+period, 1_000_000_000)
	now, sleeps := max(w.last, 1_000_000_000), int64(0)
	for i := range bursts * 5 {
		packet := begin + int64(i/5)*period + int64(i%5)*2*us
		for now < packet {
			s := w.next(now)
			switch {
			case s.kind == stepSpin:
				now += us / 2
				continue
			case s.kind == stepSleep || s.kind == stepDoze && packet < s.until+slip:
				sleeps += packet - now
				now, asleep = packet+20*us, asleep+1
				w.woke(0, now)
			default:
				sleeps += s.until + slip - now
				if s.kind == stepRest {
					w.rested(s.until + slip - now - 20*us)
				}
				if now = s.until + slip; now > packet {
					asleep++
				}
				w.woke(s.until, now)
			}
		}
		w.arrived(packet)
	}
	return asleep, float64(sleeps) / float64(int64(bursts)*period)
}

// The waiter sleeps between bursts and runs when they arrive; it does not sleep within bursts.
func TestBurstsFindItAwake(t *testing.T) {
	for _, awake := range []int64{500, 950} {
		w := newWaiter(goals{reach: 1000 * us, awake: awake}, preferred)
		replay(w, 1000, 200*us, 10*us)
		asleep, slept := replay(w, 1000, 200*us, 10*us)
		if most := (1000 - int(awake)) * 13 / 10; asleep > most || slept < 0.5 {
			t.Errorf("awake %d: %d packets of 1000 bursts found it asleep, and it slept for %.2f of the time", awake,
				asleep, slept)
		}
	}
}

// If timers are too late for a sleep before the next burst, a real-time thread rests between bursts.
func TestRestsBetweenBursts(t *testing.T) {
	w := newWaiter(goals{reach: 1000 * us, awake: 999}, realtime)
	replay(w, 3000, 100*us, 30*us)
	if asleep, slept := replay(w, 3000, 100*us, 30*us); asleep > 30 || slept < 0.06 {
		t.Errorf("%d of 15000 packets found it asleep; it rested for %.2f of the time", asleep, slept)
	}
}

// The waiter does not spin for irregular packets with gaps over reach.
func TestSleepsThroughRarePackets(t *testing.T) {
	w := newWaiter(goals{reach: 1000 * us, awake: 975}, preferred)
	now := int64(1_000_000_000)
	for i := range int64(20) {
		w.arrived(now)
		now += 30 * us
		if s := w.next(now); i > 0 && s.kind != stepSleep {
			t.Errorf("after %d packets: %+v", i+1, s)
		}
		now += (5 + i*i%7*10) * 1000 * us
	}
}

// An ordinary thread that was preempted sleeps for each packet, and spins again later.
func TestOrdinaryThreadYields(t *testing.T) {
	w := newWaiter(goals{reach: 1000 * us, awake: 950}, ordinary)
	replay(w, 1000, 200*us, 10*us)
	now := w.last + 50*us
	w.preempted(now)
	if s := w.next(now); s.kind != stepSleep {
		t.Errorf("after it has lost its CPU it does %+v", s)
	}
	now += ordinaryEase
	if w.reduceRest(now); w.rest != 0 {
		t.Errorf("it rests for %d of 1000 though others had a moment to go", w.rest)
	}
	for range 20 { // without further preemptions
		now += 2 * w.step
		w.preempted(now)
	}
	if w.step != maxEase {
		t.Errorf("it tries again every %d ns, though each time it loses its CPU", w.step)
	}
}
