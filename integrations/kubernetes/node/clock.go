// SPDX-License-Identifier: Apache-2.0

package node

import "time"

// clock is the clock of the node; nil: the one of the kernel. Times of a rollout are compared with others of the same
// process only: a node whose clock is wrong takes part as all others do.
type clock func() time.Time

func (c clock) now() time.Time {
	if c == nil {
		return time.Now()
	}
	return c()
}

func (c clock) since(t time.Time) time.Duration { return c.now().Sub(t) }
