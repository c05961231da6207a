// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// CPUs returns the CPUs that this process may use, in ascending order. With SMT, the first and the last one are not
// siblings.
func CPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("cpu affinity: %w", err)
	}
	var all []int
	for cpu := 0; len(all) < set.Count(); cpu++ {
		if set.IsSet(cpu) {
			all = append(all, cpu)
		}
	}
	return all, nil
}
