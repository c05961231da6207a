// SPDX-License-Identifier: Apache-2.0

package traffic

import "golang.org/x/sys/unix"

// Urgent runs f in front of all ordinary threads of its CPU (SCHED_FIFO), so
// that a busy machine does not show as loss or delay. f must sleep or block most
// of the time, or be short. The calling thread must be locked; without
// the right to real-time priority f runs as it is.
func Urgent(f func() error) error {
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
