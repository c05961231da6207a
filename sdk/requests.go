// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	requestWait = 30 * time.Second // how long a request of the agent is held open
	maxRequests = 4096             // addresses that the agent has not fetched yet; further ones are discarded
)

// requests holds the control plane's requests to the agent until the agent fetches them.
type requests struct {
	mu      sync.Mutex
	pending Requests // with the map set whose releases are accepted
	queued  map[netip.Addr]bool
	arrived chan struct{}
}

func newRequests() *requests {
	return &requests{queued: map[netip.Addr]bool{}, arrived: make(chan struct{}, 1)}
}

func (r *requests) resolve(addr netip.Addr) {
	addr = addr.Unmap()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !addr.IsValid() || r.queued[addr] || len(r.queued) == maxRequests {
		return
	}
	r.queued[addr] = true
	r.pending.Resolve = append(r.pending.Resolve, addr)
	r.wake()
}

// begin accepts releases of this map set from now on. Services that the previous map set released may be in use again.
func (r *requests) begin(mapSet string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending.MapSet, r.pending.Release = mapSet, nil
}

func (r *requests) release(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Contains(r.pending.Release, name) {
		r.pending.Release = append(r.pending.Release, name)
		r.wake()
	}
}

// maxClientMaps is the number of clients that may wait for maps whose request the agent has not fetched yet.
const maxClientMaps = 256

func (r *requests) sendMaps(m ClientMaps) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending.SendMaps) == maxClientMaps {
		return errors.New("too many clients are waiting for maps")
	}
	r.pending.SendMaps = append(r.pending.SendMaps, m)
	r.wake()
	return nil
}

// maxArrivals is the number of frames that may wait for the agent to fetch them.
const maxArrivals = 256

func (r *requests) arrive(ifindex uint32, frame []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending.Arrive) == maxArrivals {
		return false
	}
	r.pending.Arrive = append(r.pending.Arrive, Arrival{ifindex, frame})
	r.wake()
	return true
}

func (r *requests) wake() {
	select {
	case r.arrived <- struct{}{}:
	default:
	}
}

// take waits for requests, up to a time limit.
func (r *requests) take(ctx context.Context) Requests {
	timeout := time.NewTimer(requestWait)
	defer timeout.Stop()
	for {
		r.mu.Lock()
		got := r.pending
		if !got.Empty() && ctx.Err() == nil {
			r.pending = Requests{MapSet: got.MapSet}
			clear(r.queued)
			r.mu.Unlock()
			return got
		}
		r.mu.Unlock()
		select {
		case <-r.arrived:
		case <-timeout.C:
			return Requests{}
		case <-ctx.Done():
			return Requests{}
		}
	}
}
