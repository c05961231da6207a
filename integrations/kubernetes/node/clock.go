// SPDX-License-Identifier: Apache-2.0

package node

import "time"

// clock is the clock of the node; nil means the kernel's. Times of a rollout are only compared with those of the same
// process, so that nodes with a wrong clock work like all others.
type clock func() time.Time

func (c clock) now() time.Time {
	if c == nil {
		return time.Now()
	}
	return c()
}

func (c clock) since(t time.Time) time.Duration { return c.now().Sub(t) }
