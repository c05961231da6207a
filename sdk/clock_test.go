// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// The first call is immediate, the next ones follow at intervals of a period, and none after the end of the context.
func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		const period = 20 * time.Millisecond
		var calls []time.Duration
		begin := time.Now()
		Every(ctx, period, func() {
			if calls = append(calls, time.Since(begin)); len(calls) == 3 {
				cancel()
			}
		})
		if want := []time.Duration{0, period, 2 * period}; !slices.Equal(calls, want) {
			t.Errorf("called after %v, want %v", calls, want)
		}
	})
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		if !Pause(t.Context(), time.Minute) || time.Since(begin) != time.Minute {
			t.Errorf("it ended after %v", time.Since(begin))
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if Pause(ended, time.Hour) || time.Since(begin) != time.Minute {
			t.Error("an ended context did not end it")
		}
	})
}

// The clock is that of the kernel, which does not stand still and is not the wall clock's.
func TestMonotonic(t *testing.T) {
	first := Monotonic()
	time.Sleep(time.Millisecond) // the clock has to run meanwhile
	if passed := Monotonic() - first; passed < uint64(time.Millisecond) || passed > uint64(time.Minute) {
		t.Errorf("%d ns passed in a millisecond", passed)
	}
}
