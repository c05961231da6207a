// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// CPU returns the CPU time of the agent and its control planes.
func (n *Node) CPU() (sum time.Duration, err error) {
	planes, err := Descendants(n.PID())
	if err != nil {
		return 0, err
	}
	for _, pid := range append(planes, n.PID()) {
		used, err := CPUOf(pid)
		if err != nil {
			return 0, err
		}
		sum += used
	}
	return sum, nil
}

// CPUOf returns the CPU time of a process.
func CPUOf(pid int) (time.Duration, error) {
	const schedClock = 2 // CPUCLOCK_SCHED of the whole process (include/linux/posix-timers.h)
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|schedClock, &used); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(used.Nano()), nil
}
