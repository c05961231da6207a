// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// TestForgotten gives the slot of a series that is gone to another: records of longer steps that end later have no
// value of the former.
func TestForgotten(t *testing.T) {
	s := open(t, t.TempDir())
	start := time.Now().Add(-time.Minute)
	sample := map[v1.Series]float32{}
	for i := range MaxSeries {
		sample[service(fmt.Sprint("s", i))] = 1000
	}
	add(t, s, start, sample)
	for n := range 5 {
		add(t, s, start.Add(time.Duration(1+n)*Period), map[v1.Series]float32{service("next"): 2})
	}
	head, lines := read(t, s, 24*time.Hour)
	at := slices.Index(head.Series, service("next"))
	if at < 0 || len(lines) != 1 || lines[0].Values[at] != 2 || lines[0].Max[at] != 2 {
		t.Errorf("next is %d of %d lines: %v", at, len(lines), lines[0].Values[max(at, 0)])
	}
}

// TestLiveReplaced fills the live samples with series that are gone: new ones get room, and clients a head that has
// them.
func TestLiveReplaced(t *testing.T) {
	var l Live
	_, leave := l.Join()
	defer leave()
	sample := map[v1.Series]float32{}
	for i := range MaxSeries {
		sample[service(fmt.Sprint("s", i))] = 1
	}
	l.Add(time.Unix(1, 0), readings(sample))
	var at int64
	var columns []int
	known := -1
	if _, head, _ := l.after(&at, &known, &columns, all); head == nil || len(head.Series) != MaxSeries {
		t.Fatalf("the head is %+v", head)
	}
	l.Add(time.Unix(2, 0), readings(map[v1.Series]float32{service("next"): 5}))
	lines, head, _ := l.after(&at, &known, &columns, all)
	if head == nil || !slices.Equal(head.Series, []v1.Series{service("next")}) || len(lines) != 1 ||
		!slices.Equal(lines[0].Values, v1.Values{5}) {
		t.Errorf("the head is %+v, the lines are %+v", head, lines)
	}
	if _, head, _ := l.after(&at, &known, &columns, all); head != nil {
		t.Errorf("there is a head without other series: %+v", head)
	}
	another := int64(0)
	fresh := -1
	if lines, _, _ := l.after(&another, &fresh, &columns, all); len(lines) != 1 {
		t.Errorf("another client gets %d lines, of series that are gone", len(lines))
	}
}

// TestTooManyReadings: what was read before is read again, in whatever order, and what is left out is counted.
func TestTooManyReadings(t *testing.T) {
	var r Readings
	take := func(from, to int) {
		r.Reset()
		for i := to - 1; i >= from; i-- {
			r.gauge("kerb_problems", v1.Series{Service: fmt.Sprint(i)}, 1)
		}
	}
	take(0, maxReadings-1)
	take(0, maxReadings+50)
	if len(r.All()) != maxReadings || r.Omitted() != 50 {
		t.Fatalf("%d readings, %d omitted", len(r.All()), r.Omitted())
	}
	kept := 0
	for _, n := range r.All() {
		if i, _ := strconv.Atoi(n.Service); i < maxReadings-1 {
			kept++
		}
	}
	if kept != maxReadings-1 {
		t.Errorf("of those before %d are there", kept)
	}
	take(100, maxReadings+50)
	take(100, maxReadings+50)
	if len(r.All()) != maxReadings-50 || r.Omitted() != 0 {
		t.Errorf("when some are gone: %d readings, %d omitted", len(r.All()), r.Omitted())
	}
}

// A counter that was left out or forgotten, as there are too many, is not what it has counted all at once when it comes
// back. One that is new after that counts from zero again.
func TestForgottenCounters(t *testing.T) {
	for name, between := range map[string][][2]int{ // readings after the first one: which counters each has
		"left out":             {{0, 1}, {1, maxReadings + 1}, {1, maxReadings + 1}},
		"forgotten for others": {{10, 500}, {500, 1000}, {1000, 1500}, {1500, 2000}},
	} {
		var r Rates
		var all Readings
		at := time.Unix(1e9, 0)
		sample := func(after time.Duration, from, to int) float32 {
			all.Reset()
			for i := from; i < to; i++ {
				all.count("kerb_dropped_packets_per_second", v1.Series{Service: fmt.Sprint(i)}, 1000, true)
			}
			all.count("kerb_dropped_packets_per_second", v1.Series{Service: fmt.Sprint(from, "-", to)}, 1000, true)
			at = at.Add(after)
			r.Add(at, &all)
			most := float32(-1) // of the first ten
			for _, n := range all.All()[:min(10, len(all.All()))] {
				if n.counts() || n.Sample == 0 {
					most = max(most, n.Sample)
				}
			}
			return most
		}
		sample(Period, 0, 10)
		for _, some := range between {
			sample(Period, some[0], some[1])
		}
		if peak := sample(Period, 0, 10); peak > 0 {
			t.Errorf("%s: a counter that comes back is %v/s", name, peak)
		}
		if again := sample(Period, 0, 10); again != 0 {
			t.Errorf("%s: then it is %v/s", name, again)
		}
		sample(2*kept, 0, 1)
		if next := sample(Period, 1000, 1001); next != 100 {
			t.Errorf("%s: one that is new later is %v/s", name, next)
		}
	}
}
