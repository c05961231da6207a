// SPDX-License-Identifier: Apache-2.0

package proxy

import "time"

// steps pauses a sweep after each step for three times as long as it took: it uses a quarter of one CPU at most.
type steps struct {
	pause func(time.Duration)
	begin time.Time
	work  time.Duration
}

func (w *running) newSteps() *steps { return &steps{pause: w.pause, begin: time.Now()} }

func (s *steps) done() {
	d := time.Since(s.begin)
	s.work += d
	if s.pause != nil {
		s.pause(3 * d)
	}
	s.begin = time.Now()
}

func (s *steps) took() time.Duration { return s.work + time.Since(s.begin) }
