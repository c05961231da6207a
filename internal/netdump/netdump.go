// SPDX-License-Identifier: Apache-2.0

// Package netdump repeats netlink dumps during which something has changed (NLM_F_DUMP_INTR): they may lack entries, or
// have them twice.
package netdump

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// attempts are many, as other processes may create links all the time.
const attempts = 1000

// Links are the interfaces of the current network namespace.
func Links() ([]netlink.Link, error) { return Complete(netlink.LinkList) }

// Complete returns the first result of dump that is complete, or netlink.ErrDumpInterrupted.
func Complete[T any](dump func() (T, error)) (T, error) {
	for range attempts {
		all, err := dump()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return all, err
		}
	}
	var none T
	return none, netlink.ErrDumpInterrupted
}
