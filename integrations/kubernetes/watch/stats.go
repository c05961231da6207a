// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"maps"
	"path"
	"sync"
	"time"
)

// Stats has the counters of a client since its start. Its size depends only on the number of watched resources.
type Stats struct {
	Requests map[Request]uint64
	Watches  map[string]WatchStats // by resource, for example pods
}

// Request is a kind of requests: an HTTP method, and the code of the response, or "error" without one.
type Request struct{ Method, Code string }

// WatchStats has the counters of one watch.
type WatchStats struct {
	Lists  uint64 // complete lists: one at the start, and one whenever the server has forgotten too much
	Errors uint64 // interruptions, but for those by which the server ends a watch after its time
	// Last is the time of the last object or bookmark, which the server sends about every minute; before the first one,
	// the time at which the watch started.
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

// Stats returns the client's counters.
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
