// SPDX-License-Identifier: Apache-2.0

package netdump

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

func TestComplete(t *testing.T) {
	failed := errors.New("no permission")
	var paused time.Duration
	sleep = func(d time.Duration) { paused = max(paused, d) }
	t.Cleanup(func() { sleep = time.Sleep })
	for _, c := range []struct {
		interrupted, calls int
		err                error
	}{
		{0, 1, nil}, {3, 4, nil}, {3, 4, failed}, {attempts, attempts, netlink.ErrDumpInterrupted},
	} {
		calls := 0
		paused = 0
		got, err := Complete(func() (int, error) {
			if calls++; calls <= c.interrupted {
				return 1, fmt.Errorf("links: %w", netlink.ErrDumpInterrupted) // an incomplete result
			}
			return 7, c.err
		})
		if want := c.err == netlink.ErrDumpInterrupted; calls != c.calls || !errors.Is(err, c.err) || (got == 7) == want {
			t.Errorf("%+v: %d calls, %d, %v", c, calls, got, err)
		}
		if want := min(time.Duration(max(c.interrupted-1, 0))*time.Millisecond, maxPause); paused != want {
			t.Errorf("%+v: the longest pause is %v, want %v", c, paused, want)
		}
	}
}
