// SPDX-License-Identifier: Apache-2.0

// Package netdump repeats netlink dumps during which something has changed (NLM_F_DUMP_INTR): they may lack entries, or
// have them twice.
package netdump

import (
	"errors"
	"time"

	"github.com/vishvananda/netlink"
)

// attempts are many, as other processes may create links all the time. Then each takes longer to begin than the one
// before, up to maxPause: a dump holds the lock for which those processes wait.
const (
	attempts = 1000
	maxPause = 10 * time.Millisecond
)

// sleep is replaced by tests.
var sleep = time.Sleep

// Links are the interfaces of the current network namespace.
func Links() ([]netlink.Link, error) { return Complete(netlink.LinkList) }

// Complete returns the first result of dump that is complete, or netlink.ErrDumpInterrupted.
func Complete[T any](dump func() (T, error)) (T, error) {
	for n := range attempts {
		all, err := dump()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
		sleep(min(time.Duration(n)*time.Millisecond, maxPause))
	}
	var none T
	return none, netlink.ErrDumpInterrupted
}
