// SPDX-License-Identifier: Apache-2.0

package extract

import "time"

// Values that features are cut to.
const limit = 1<<31 - 1

const sliceCount = 4 // of a sliding window

// Config is how is extracted: constants of the data plane.
type Config struct {
	Window       time.Duration // 0: from the first packet on
	Sliding      bool
	Repeat       time.Duration // rpl: frames with the same sequence number are one message for so long
	CountSecured bool          // rpl
	ByPeer       bool          // flow
}

// Window is what has been counted of a source. Values are features in the order of their names.
type Window[S comparable] struct {
	Source S
	Time   uint64 // ns, when it ended
	Values []int64
}

// span is the smallest and the largest of some values.
type span struct {
	low, high uint32
	any       bool
}

func (s *span) widen(v uint64) {
	n := uint32(min(v, limit))
	if !s.any || n < s.low {
		s.low = n
	}
	s.high = max(s.high, n)
	s.any = true
}

func (s *span) join(o span) {
	if o.any {
		s.widen(uint64(o.low))
		s.widen(uint64(o.high))
	}
}

type sums [16]uint64

// slice is a part of time: what was counted in it.
type slice struct {
	sum         sums
	length, gap span
}

func (s *slice) add(o slice) {
	for i := range s.sum {
		s.sum[i] += o.sum[i]
	}
	s.length.join(o.length)
	s.gap.join(o.gap)
}

// record is what is known of a source. Unlike the data plane it keeps what each slice held.
type record struct {
	first, last uint64
	slice       uint64
	met         bool // last is set
	held        map[uint64]slice
	before      [6]uint64
	seen        []seen
	dio         *Frame // the last one
	opener      bool   // flow: the service's side opened it
	servicePort uint16
}

type seen struct {
	tag, ms uint32
}

func (c *Config) sliceLen() uint64 {
	if c.Sliding {
		return uint64(c.Window) / sliceCount
	}
	return uint64(c.Window)
}

func (c *Config) number(now uint64) uint64 {
	if c.Window == 0 {
		return 0
	}
	return now / c.sliceLen()
}

func (c *Config) newRecord(now uint64) *record {
	return &record{first: now, slice: c.number(now), held: map[uint64]slice{}}
}

// window is the sum over the slices of the window that ends with number.
func (c *Config) window(r *record, number uint64) slice {
	out := r.held[number]
	for i := uint64(1); c.Sliding && i < sliceCount && i <= number; i++ {
		out.add(r.held[number-i])
	}
	return out
}

// close ends the slice that the record is in, if time has left it: what the window has held.
func (c *Config) close(r *record, now uint64) (ended slice, end uint64, ok bool) {
	n := c.number(now)
	if c.Window == 0 || r.slice >= n {
		return slice{}, 0, false
	}
	return c.window(r, r.slice), (r.slice + 1) * c.sliceLen(), true
}

// lapse ends the slices that time has left, as the data plane's timer does: each window that holds anything, once.
func (c *Config) lapse(r *record, now uint64, ended func(s *slice, end uint64)) {
	for {
		s, end, ok := c.close(r, now)
		switch {
		case !ok:
			return
		case s.sum == sums{}:
			c.begin(r, now)
			return
		}
		ended(&s, end)
		c.begin(r, end)
	}
}

// begin continues with the slice of now, after close and what it was for.
func (c *Config) begin(r *record, now uint64) {
	n, per := c.number(now), uint64(1)
	if c.Sliding {
		per = sliceCount
	}
	if was, is := r.slice/per, n/per; was != is {
		r.before = [6]uint64{}
		if was+1 == is {
			for s := was * per; s < is*per; s++ {
				for i := range r.before {
					r.before[i] = min(r.before[i]+r.held[s].sum[i], limit)
				}
			}
		}
	}
	r.slice = n
	for s := range r.held {
		if s+2*sliceCount < n {
			delete(r.held, s)
		}
	}
}

// count changes what the present slice holds.
func (r *record) count(change func(s *slice)) {
	s := r.held[r.slice]
	change(&s)
	r.held[r.slice] = s
}

func mean(sum, n uint64) uint64 {
	if n == 0 {
		return 0
	}
	return sum / n
}

func deviation(sum, squares, n uint64) uint64 {
	if n == 0 {
		return 0
	}
	m := mean(sum, n)
	return root(squares/n - m*m)
}

func cut(values ...uint64) []int64 {
	out := make([]int64, len(values))
	for i, v := range values {
		out[i] = int64(min(v, limit))
	}
	return out
}
