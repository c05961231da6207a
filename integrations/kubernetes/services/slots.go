// SPDX-License-Identifier: Apache-2.0

package services

import (
	"math/bits"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Slots returns the maximum number of slots in the proxy's table for a virtual service of Translate. Each address has a
// run of slots for the instances that get new connections, and another for each port that only some instances serve.
// The length of a run is a power of two.
func Slots(v *v1.VirtualService) (n int) {
	type port struct {
		number   uint16
		protocol v1.Protocol
	}
	serving, without := 0, map[port]int{}
	for _, i := range v.Spec.Instances {
		if !i.Draining {
			serving++
		}
		for _, p := range i.ExcludedPorts {
			without[port{p.Port, p.Protocol}] += 0
			if !i.Draining {
				without[port{p.Port, p.Protocol}]++
			}
		}
	}
	for _, a := range v.Spec.Addresses {
		n += run(serving, a.AffinityTimeout != "")
		for _, less := range without {
			n += run(serving-less, a.AffinityTimeout != "")
		}
	}
	return n
}

// run returns what a run takes. With affinity it is a Maglev table of ten slots for each instance or more, in one of
// the sizes that modules/proxy has.
func run(instances int, affinity bool) int {
	if !affinity || instances < 2 {
		return 1 << bits.Len(uint(max(instances, 1)-1))
	}
	size := 256
	for size < 10*instances {
		size *= 4
	}
	return size
}
