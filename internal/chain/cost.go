// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Cost is what a module costs the node.
type Cost struct {
	Latency []Latency // by hook and direction
	Memory  int64     // of its maps, as the kernel accounts for them, in bytes
}

// Latency is the time that a module adds to a packet on one hook in one direction.
type Latency struct {
	Hook      Hook
	Direction Direction
	Packets   []PacketCost
}

// PacketCost is the time for one kind of packet, in nanoseconds, above that of a chain without modules.
type PacketCost struct {
	Kind   string
	Median float64 // of the differences from the chain without modules
	// Least is the difference between the best runs with and without modules, so that noise cannot have added to it. It is
	// never above Median.
	Least float64
}

// Worst returns the cost of the most expensive kind of packet.
func (l Latency) Worst() PacketCost {
	return slices.MaxFunc(l.Packets, func(a, b PacketCost) int { return cmp.Compare(a.Median, b.Median) })
}

// Median returns the median over the kinds of packets.
func (l Latency) Median() float64 {
	var all []float64
	for _, p := range l.Packets {
		all = append(all, p.Median)
	}
	return Median(all)
}

// Least returns the cost of the kind of packet whose best run is the most expensive: a lower bound for such a packet.
func (l Latency) Least() PacketCost {
	return slices.MaxFunc(l.Packets, func(a, b PacketCost) int { return cmp.Compare(a.Least, b.Least) })
}

// Median returns the median of values, 0 if there are none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// ErrNotMeasured is returned, with the cost as far as it is known, when a module cannot be test-run.
var ErrNotMeasured = errors.New("cannot be measured")

// ErrNotPackets is returned, with its memory, for a module on sockets.
var ErrNotPackets = fmt.Errorf("%w: its cost is part of send() and of connections, "+
	"which the kernel offers no test run for; its memory is known", ErrNotMeasured)
