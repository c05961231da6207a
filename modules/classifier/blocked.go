// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"net/netip"
	"sync/atomic"

	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/model"
)

// Blocked is a source that something is done to.
type Blocked struct {
	Location
	Action  string  `json:"action"`
	Since   string  `json:"since"`
	Until   string  `json:"until,omitempty"` // absent: until unblocked
	Packets uint64  `json:"packets"`         // that came since then
	Dropped uint64  `json:"dropped"`         // of them
	Version uint32  `json:"version"`         // of the model
	Class   string  `json:"class"`
	Score   float64 `json:"score"`
}

const timeFormat = "2006-01-02T15:04:05.000Z"

// blocked returns the sources that the fuse holds now. Times are wall-clock, converted from the kernel's monotonic
// nanoseconds; Until is empty for a block without an end.
func (w *running) blocked() ([]Blocked, error) {
	out, at := []Blocked{}, w.places()
	err := sdk.EachElement(w.live.Maps, mapBlocks, batch, func(s source, b *block) bool {
		one := Blocked{Location: at.of(s), Action: named(actions, b.Action), Since: wall(b.Since).Format(timeFormat),
			Packets: b.Packets, Dropped: b.Dropped,
			Version: b.Version, Class: w.words.class(b.Version, b.Class), Score: share(b.Score)}
		if b.Until != 0 {
			one.Until = wall(b.Until).Format(timeFormat)
		}
		out = append(out, one)
		return true
	})
	return out, err
}

// share is a score between 0 and 1.
func share(score int32) float64 { return float64(score) / model.ScoreOne }

// unblock frees sources, and returns how many.
func (w *running) unblock(meant func(source, *block) bool) (n int, err error) {
	var keys []source
	err = sdk.EachElement(w.live.Maps, mapBlocks, batch, func(s source, b *block) bool {
		if meant(s, b) {
			keys = append(keys, s)
		}
		return true
	})
	for _, key := range keys {
		was, removeErr := remove(w.live.Maps, mapBlocks, key)
		if removeErr != nil {
			return n, removeErr
		}
		if was {
			n++
			atomic.AddUint32(&w.fuse.Blocked, ^uint32(0))
			w.mu.Lock()
			w.evaluator.free(key)
			w.mu.Unlock()
		}
	}
	return n, err
}

// sweep removes what has expired, which the data plane does itself when the source is heard again, and what belongs to
// interfaces that have gone, and corrects the number of those that are left.
func (w *running) sweep() error {
	now, at, left := sdk.Monotonic(), w.places(), uint32(0)
	n, err := w.unblock(func(s source, b *block) bool {
		left++
		_, there := at[s.Ifindex]
		return b.Until != 0 && b.Until <= now || !there
	})
	if err == nil {
		atomic.StoreUint32(&w.fuse.Blocked, left-uint32(n))
	}
	return err
}

// freeAllowed frees sources that the allow-list of a new config has.
func (w *running) freeAllowed() error {
	if len(w.config.Allow) == 0 {
		return nil
	}
	_, err := w.unblock(func(s source, _ *block) bool { return w.config.allows(s) })
	return err
}

// allows reports whether the allow-list has one end of a source.
func (c *config) allows(s source) bool {
	for _, text := range c.Allow {
		p, err := parsePrefix(text)
		if err == nil && (p.Contains(netip.AddrFrom16(s.Addr)) || p.Contains(netip.AddrFrom16(s.Local))) {
			return true
		}
	}
	return false
}
