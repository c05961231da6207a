// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// RunOnCPU runs f on one CPU, numbered from 0 modulo the number of CPUs that this process may use, so that measured
// code does not migrate.
func RunOnCPU(cpu int, f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return fmt.Errorf("cpu affinity: %w", err)
	}
	var one unix.CPUSet
	one.Set(nthCPU(&before, cpu))
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return fmt.Errorf("pin to cpu: %w", err)
	}
	defer unix.SchedSetaffinity(0, &before)
	return f()
}

func nthCPU(set *unix.CPUSet, n int) int {
	n %= max(set.Count(), 1)
	for cpu := 0; ; cpu++ {
		if set.IsSet(cpu) {
			if n == 0 {
				return cpu
			}
			n--
		}
	}
}
