// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// CPU is the time that the agent and its control planes have had of all CPUs so far.
func (n *Node) CPU() (sum time.Duration, err error) {
	pids, err := n.pids()
	if err != nil {
		return 0, err
	}
	for _, pid := range pids {
		const schedClock = 2 // CPUCLOCK_SCHED of the whole process (include/linux/posix-timers.h)
		var used unix.Timespec
		if err := unix.ClockGettime(int32(^pid)<<3|schedClock, &used); err != nil {
			return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
		}
		sum += time.Duration(used.Nano())
	}
	return sum, nil
}

// pids are the agent and its control planes.
func (n *Node) pids() ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	own := []int{n.PID()}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest) // state, parent, ...
		if len(fields) > 1 && fields[1] == strconv.Itoa(own[0]) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				return nil, err
			}
			own = append(own, pid)
		}
	}
	return own, err
}
