// SPDX-License-Identifier: Apache-2.0

package node

import "time"

// clock is the clock of the node; nil is time.Now. Times of a rollout are only compared with times of the same process,
// so that a node with a wrong clock works like all others.
type clock func() time.Time

func (c clock) now() time.Time {
	if c == nil {
		return time.Now()
	}
	return c()
}

func (c clock) since(t time.Time) time.Duration { return c.now().Sub(t) }
