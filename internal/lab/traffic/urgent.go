// SPDX-License-Identifier: Apache-2.0

package traffic

import "golang.org/x/sys/unix"

// RunRealtime runs f with real-time priority (SCHED_FIFO), so that load on the
// machine does not show as loss or delay. f must be short, or sleep or block
// most of the time. The calling goroutine must be locked to its thread. Without
// permission for real-time priority f runs at normal priority.
func RunRealtime(f func() error) error {
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return f()
	}
	fifo := &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}
	if err := unix.SchedSetAttr(0, fifo, 0); err != nil {
		return f()
	}
	defer unix.SchedSetAttr(0, before, 0)
	return f()
}
