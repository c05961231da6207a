// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// timerSlack is how much later than it asks for a thread of the agent may be woken. As long as something runs, the
// watchdog of Go's runtime sleeps for 20 µs again and again, which takes a tenth of the processor time of a change.
// Nothing here needs timers that are more exact.
const timerSlack = 500 * time.Microsecond

// allowSlack gives all threads this slack. Those that are made later inherit it, and control planes and integrations.
// It needs CAP_SYS_NICE, instead of which the unit of systemd has TimerSlackNSec=. Without both, timers stay exact.
func allowSlack() {
	threads, _ := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		_ = os.WriteFile(filepath.Join("/proc", t.Name(), "timerslack_ns"),
			strconv.AppendInt(nil, timerSlack.Nanoseconds(), 10), 0)
	}
}
