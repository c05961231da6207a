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
