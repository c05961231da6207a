// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"context"
	"sync"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Second is the time between live samples.
const Second = time.Second

// liveRows are the samples that are kept: 5 minutes.
const liveRows = 300

// Live keeps the samples of the last 5 minutes in memory while there are clients. Its methods may be called from
// several goroutines.
type Live struct {
	mu      sync.Mutex
	clients int
	newer   chan struct{} // closed with the next sample

	series  []v1.Series
	columns map[v1.Series]int
	version int // of the series
	omitted int
	first   int64 // number of the first sample of these series
	next    int64
	times   []int64
	rows    [][]float32
}

// Join adds a client, and reports whether it is the first. The function that it returns takes it out again.
func (l *Live) Join() (first bool, leave func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients++
	if l.newer == nil {
		l.newer, l.columns = make(chan struct{}), map[v1.Series]int{}
	}
	return l.clients == 1, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.clients--; l.clients == 0 {
			l.reset()
			l.times, l.rows = nil, nil
		}
	}
}

// Wanted reports whether there are clients.
func (l *Live) Wanted() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clients > 0
}

// reset forgets all samples: of series that are gone there may be no end.
func (l *Live) reset() {
	l.series, l.columns, l.first = nil, map[v1.Series]int{}, l.next
	l.version++
}

// fresh are the series of a sample that have no column and are not zero.
func (l *Live) fresh(all []Reading) (fresh []v1.Series) {
	for i := range all {
		if _, known := l.columns[all[i].Series]; !known && all[i].counts() {
			fresh = append(fresh, all[i].Series)
		}
	}
	inOrder(fresh)
	return fresh
}

// gone reports whether a series that has a column is not in a sample.
func (l *Live) gone(all []Reading) bool {
	present := 0
	for i := range all {
		if _, known := l.columns[all[i].Series]; known {
			present++
		}
	}
	return present < len(l.series)
}

// Add adds a sample.
func (l *Live) Add(at time.Time, all []Reading) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.clients == 0 {
		return
	}
	fresh := l.fresh(all)
	if len(l.series)+len(fresh) > MaxSeries && l.gone(all) {
		l.reset()
		fresh = l.fresh(all)
	}
	l.omitted = max(0, len(fresh)+len(l.series)-MaxSeries)
	for _, series := range fresh[:len(fresh)-l.omitted] {
		l.columns[series] = len(l.series)
		l.series = append(l.series, series)
		l.version++
	}
	l.keep(at, all)
	close(l.newer)
	l.newer = make(chan struct{})
}

// keep writes a sample in the place of the oldest.
func (l *Live) keep(at time.Time, all []Reading) {
	if l.rows == nil {
		l.rows, l.times = make([][]float32, liveRows), make([]int64, liveRows)
	}
	place := l.next % liveRows
	row := l.rows[place][:0]
	if cap(row) < len(l.series) { // append would make it larger than it can become
		row = make([]float32, 0, (len(l.series)+63)/64*64)
	}
	for range l.series {
		row = append(row, nan)
	}
	for i := range all {
		if column, ok := l.columns[all[i].Series]; ok {
			row[column] = all[i].Sample
		}
	}
	l.rows[place], l.times[place] = row, at.UnixMilli()
	l.next++
}

// Follow passes on the samples that there are, and then each that follows, until ctx ends or send returns an error. A
// slow client gets fewer.
func (l *Live) Follow(ctx context.Context, want func(v1.Series) bool, send func(v1.HistoryLine) error) error {
	var columns []int
	known, at := -1, int64(0)
	for {
		lines, head, newer := l.after(&at, &known, &columns, want)
		if head != nil {
			if err := send(*head); err != nil {
				return err
			}
		}
		for _, line := range lines {
			if err := send(line); err != nil {
				return err
			}
		}
		if newer == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-newer:
		}
	}
}

// after returns the next samples from number at on, and newer if these are all. Before them is a head if the series are
// not those that the client knows.
func (l *Live) after(at *int64, known *int, columns *[]int, want func(v1.Series) bool) (
	lines []v1.HistoryLine, head *v1.HistoryLine, newer <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.version != *known {
		*known, *columns = l.version, nil
		head = &v1.HistoryLine{Series: []v1.Series{}, Step: int(Second.Seconds()), Omitted: l.omitted}
		for i, series := range l.series {
			if want(series) {
				*columns = append(*columns, i)
				head.Series = append(head.Series, series)
			}
		}
	}
	n := max(*at, l.first, l.next-liveRows)
	for ; n < l.next && len(lines) < atOnce; n++ {
		row := l.rows[n%liveRows]
		line := v1.HistoryLine{Time: float64(l.times[n%liveRows]) / 1e3}
		for _, i := range *columns {
			v := nan
			if i < len(row) {
				v = row[i]
			}
			line.Values = append(line.Values, v)
		}
		lines = append(lines, line)
	}
	if *at = n; n < l.next {
		return lines, head, nil
	}
	return lines, head, l.newer
}

// atOnce is how many samples wait for a client.
const atOnce = 10
