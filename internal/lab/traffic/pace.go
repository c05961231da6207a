// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// Pacer spaces out events at a rate on the calling thread.
type Pacer struct {
	gap  int64 // ns
	next int64
}

// maxLag is how much time a pacer catches up; more would be a burst that overflows the queues of the machine.
const maxLag = int64(5 * time.Millisecond)

// NewPacer returns a pacer whose first event is due now. It sets the thread's timer slack to the minimum.
func NewPacer(gap time.Duration) *Pacer {
	unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	return &Pacer{gap: gap.Nanoseconds(), next: monotonic()}
}

// Wait sleeps until the next event is due.
func (p *Pacer) Wait() {
	p.next += p.gap
	now := monotonic()
	if now > p.next {
		p.next = max(p.next, now-maxLag)
		return
	}
	due := unix.NsecToTimespec(p.next)
	for unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &due, nil) == unix.EINTR {
	}
}

func monotonic() int64 { return int64(sdk.Monotonic()) }
