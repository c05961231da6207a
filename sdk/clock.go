// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// Monotonic returns the time of the data plane's clock, as kerb_now() and bpf_ktime_get_ns() read it: ns of
// CLOCK_MONOTONIC.
func Monotonic() uint64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // fails for unknown clocks only
	return uint64(now.Nano())
}

// Every calls do at once and then once per period until ctx ends. It skips periods that pass while do runs.
func Every(ctx context.Context, period time.Duration, do func()) {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		do()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Pause waits for a duration. It returns false immediately when ctx ends.
func Pause(ctx context.Context, length time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(length):
		return true
	}
}
