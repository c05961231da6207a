// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"path"
	"sync"
	"time"
)

// Stats are what a client has done since its start. Their size depends on the resources that are followed only.
type Stats struct {
	Requests map[Request]uint64
	Watches  map[string]WatchStats // by resource, for example pods
}

// Request is a kind of requests: an HTTP method, and the code of the answer, or "error" if there was none.
type Request struct{ Method, Code string }

// WatchStats are those of one follower.
type WatchStats struct {
	Lists  uint64 // complete lists: one at the start, and one whenever the server has forgotten too much
	Errors uint64 // interruptions, but for those by which the server ends a watch after its time
	// Last is when the last object or bookmark came, of which the server sends one about every minute; before the first
	// one, when the follower started.
	Last time.Time
}

// counters are safe for concurrent use, and count nothing if they are nil.
type counters struct {
	mu  sync.Mutex
	all Stats
}

func newCounters() *counters {
	return &counters{all: Stats{Requests: map[Request]uint64{}, Watches: map[string]WatchStats{}}}
}

// Stats returns what the client has done.
func (c *Client) Stats() Stats {
	c.count.mu.Lock()
	defer c.count.mu.Unlock()
	return Stats{maps.Clone(c.count.all.Requests), maps.Clone(c.count.all.Watches)}
}

func (c *counters) request(method, code string) {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.all.Requests[Request{method, code}]++
	c.mu.Unlock()
}

// watch changes the numbers of the follower of a collection.
func (c *counters) watch(collection string, change func(*WatchStats)) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.all.Watches[path.Base(collection)]
	change(&s)
	c.all.Watches[path.Base(collection)] = s
}
