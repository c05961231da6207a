// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/status"
)

var (
	web = status.Resource{Kind: v1.KindService, Name: "web"}
	db  = status.Resource{Kind: v1.KindService, Name: "db"}
)

func ready(status, reason string) v1.Condition {
	return v1.Condition{Type: "Ready", Status: status, Reason: reason}
}

type (
	conditions = []v1.Condition
	seconds    = []time.Duration
)

var here = v1.Condition{Type: "Moved", Status: "False", Reason: "Here"}

// Only a change of the status moves the time, and only that of its condition and its resource.
func TestTransitionTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, begin := status.NewRecorder(), time.Now()
		for _, step := range []struct {
			name        string
			of          status.Resource
			generation  int64
			now         conditions
			transitions seconds // since the first step; one second passes before every other step
		}{
			{"first", web, 1, conditions{ready("True", "Found"), here}, seconds{0, 0}},
			{"nothing changes", web, 1, conditions{ready("True", "Found"), here}, seconds{0, 0}},
			{"another resource", db, 1, conditions{ready("True", "Found")}, seconds{2}},
			{"reason, generation and order", web, 2, conditions{here, ready("True", "Other")}, seconds{0, 0}},
			{"status of one", web, 2, conditions{ready("False", "Gone"), here}, seconds{4, 0}},
			{"one is left out", web, 2, conditions{ready("False", "Gone")}, seconds{4}},
			{"and comes back", web, 2, conditions{ready("False", "Gone"), here}, seconds{4, 6}},
			{"the other one is as it was", db, 1, conditions{ready("True", "Found")}, seconds{2}},
		} {
			got := r.Record(step.of, step.generation, step.now)
			want := step.now
			for i := range want {
				want[i].ObservedGeneration, want[i].Since = step.generation, begin.Add(step.transitions[i]*time.Second)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: %s", step.name, diff)
			}
			time.Sleep(time.Second)
		}
		r.Forget(web)
		again := time.Now()
		if got := r.Record(web, 1, conditions{ready("False", "Gone")}); !got[0].Since.Equal(again) {
			t.Errorf("after Forget: %v, want %v", got[0].Since, again)
		}
	})
}

// A problem is reported when it begins, when its reason changes, and when it ends.
func TestTransitionsAreReported(t *testing.T) {
	r := status.NewRecorder()
	var reported []string
	r.OnTransition = func(of status.Resource, c v1.Condition) {
		reported = append(reported, of.Name+" "+c.Status+" "+c.Reason)
	}
	steps := conditions{ready("True", "Found"), ready("True", "Other"), ready("False", "NoInterface"),
		ready("False", "NoInterface"), ready("False", "NotFound"), ready("True", "Found"), ready("Unknown", "Starting")}
	for _, c := range steps {
		r.Record(web, 1, conditions{c})
	}
	r.Record(db, 1, conditions{ready("False", "NotFound")})
	want := []string{"web False NoInterface", "web False NotFound", "web True Found", "db False NotFound"}
	if diff := cmp.Diff(want, reported); diff != "" {
		t.Error(diff)
	}
}

// What is marked is evaluated, once however often it was marked before.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, evaluated := status.NewRecorder(), map[status.Resource]int{}
		r.Enqueue(web, db)
		r.Enqueue(web)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.Run(ctx, func(of status.Resource) { evaluated[of]++ })
		}()
		synctest.Wait()
		r.Enqueue(web) // gathered with those before
		time.Sleep(time.Second)
		r.Enqueue(db)
		time.Sleep(time.Second)
		cancel()
		<-done
		if diff := cmp.Diff(map[status.Resource]int{web: 1, db: 2}, evaluated); diff != "" {
			t.Error(diff)
		}
	})
}

// The version is another one when a condition is, or may be.
func TestVersion(t *testing.T) {
	r := status.NewRecorder()
	now := []v1.Condition{{Type: "Ready", Status: "False", Reason: "NotFound"}, {Type: "Other", Status: "True"}}
	for _, c := range []struct {
		what    string
		do      func()
		changes bool
	}{
		{"new conditions", func() { r.Record(web, 1, now) }, true},
		{"the same ones, with another text", func() { now[0].Message = "not there"; r.Record(web, 1, now) }, false},
		{"another reason", func() { now[0].Reason = "NoInterface"; r.Record(web, 1, now) }, true},
		{"another status", func() { now[0].Status = "True"; r.Record(web, 1, now) }, true},
		{"one is no longer there", func() { r.Record(web, 1, now[:1]) }, true},
		{"something they depend on", func() { r.Enqueue(web) }, true},
	} {
		before := r.Version()
		if c.do(); (r.Version() != before) != c.changes {
			t.Errorf("%s: version %d, then %d", c.what, before, r.Version())
		}
	}
}
