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

func condition(kind, status, reason string) v1.Condition {
	return v1.Condition{Type: kind, Status: status, Reason: reason}
}

// Only a change of the status moves the time, and only that of its condition and its resource.
func TestTransitionTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, begin := status.NewRecorder(), time.Now()
		for _, step := range []struct {
			name        string
			of          status.Resource
			generation  int64
			now         []v1.Condition
			transitions []time.Duration // since the first step; one second passes before every other step
		}{
			{"first", web, 1, []v1.Condition{condition("Ready", "True", "Found"), condition("Moved", "False", "Here")}, []time.Duration{0, 0}},
			{"nothing changes", web, 1, []v1.Condition{condition("Ready", "True", "Found"), condition("Moved", "False", "Here")}, []time.Duration{0, 0}},
			{"another resource", db, 1, []v1.Condition{condition("Ready", "True", "Found")}, []time.Duration{2}},
			{"reason, generation and order", web, 2, []v1.Condition{condition("Moved", "False", "Here"), condition("Ready", "True", "Other")}, []time.Duration{0, 0}},
			{"status of one", web, 2, []v1.Condition{condition("Ready", "False", "Gone"), condition("Moved", "False", "Here")}, []time.Duration{4, 0}},
			{"one is left out", web, 2, []v1.Condition{condition("Ready", "False", "Gone")}, []time.Duration{4}},
			{"and comes back", web, 2, []v1.Condition{condition("Ready", "False", "Gone"), condition("Moved", "False", "Here")}, []time.Duration{4, 6}},
			{"the other one is as it was", db, 1, []v1.Condition{condition("Ready", "True", "Found")}, []time.Duration{2}},
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
		if got := r.Record(web, 1, []v1.Condition{condition("Ready", "False", "Gone")}); !got[0].Since.Equal(again) {
			t.Errorf("after Forget: %v, want %v", got[0].Since, again)
		}
	})
}

// What is marked is evaluated, once however often it was marked before.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, evaluated := status.NewRecorder(), map[status.Resource]int{}
		r.Mark(web, db)
		r.Mark(web)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.Run(ctx, func(of status.Resource) { evaluated[of]++ })
		}()
		synctest.Wait()
		r.Mark(db)
		synctest.Wait()
		cancel()
		<-done
		if diff := cmp.Diff(map[status.Resource]int{web: 1, db: 2}, evaluated); diff != "" {
			t.Error(diff)
		}
	})
}
