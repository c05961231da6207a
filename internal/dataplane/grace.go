// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// grace is the time until packets have left that were in flight when values changed. It passes in the background.
type grace struct {
	over chan struct{}
	err  error // read after over
}

func newGrace() *grace { return &grace{over: make(chan struct{})} }

// pass starts the wait, so that the next change of values need not wait.
func (d *Dataplane) pass(g *grace) {
	defer close(g.over)
	g.err = d.awaitExpedited()
}

// awaitExpedited is awaitPackets, with expedited grace periods if permitted.
func (d *Dataplane) awaitExpedited() error {
	restore := d.expedite()
	return errors.Join(awaitPackets(), restore())
}

// isOver reports whether all those packets have left; after a kernel error they never count as left.
func (g *grace) isOver() bool {
	if g == nil {
		return false
	}
	select {
	case <-g.over:
		return g.err == nil
	default:
		return false
	}
}

// settle returns when no packet in flight reads values of before the last change. This is immediate unless another
// change was made within the last few milliseconds.
func (d *Dataplane) settle() error {
	if d.grace.isOver() {
		return nil
	}
	if err := d.awaitExpedited(); err != nil {
		return err
	}
	d.grace = newGrace()
	close(d.grace.over)
	return nil
}

// awaitPackets returns when every packet in flight has left. Tests replace it.
var awaitPackets = awaitGracePeriod

// awaitGracePeriod waits for an RCU grace period, as the kernel does after a change of a map of maps.
func awaitGracePeriod() error {
	inner := &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	one, err := ebpf.NewMap(inner)
	if err != nil {
		return fmt.Errorf("wait for packets: %w", err)
	}
	defer one.Close()
	outer, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1,
		InnerMap: inner})
	if err != nil {
		return fmt.Errorf("wait for packets: %w", err)
	}
	defer outer.Close()
	if err := outer.Put(uint32(0), one); err != nil {
		return fmt.Errorf("wait for packets: %w", err)
	}
	return nil
}
