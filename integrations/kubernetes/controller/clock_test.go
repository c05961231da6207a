// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

// takeOver has another process lead. The status is of a process whose clock was wrong.
func (d *drill) takeOver(wrong time.Duration) {
	p := *d.m.Status.Rollout
	p.Since = p.Since.Add(wrong)
	d.m.Status.Rollout, d.wave = &p, wave{}
}

// A leader counts deadlines from when it has seen the state of a rollout first, whatever time the leader before it, or
// a user, has put into the status.
func TestWrongClocks(t *testing.T) {
	for name, wrong := range map[string]time.Duration{"right": 0, "days behind": -240 * time.Hour,
		"days ahead": 240 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			r := api.Rollout{SoakSeconds: new(0), DeadlineSeconds: new(100), Waves: []int{50, 100}}
			d := newDrill(t, 40, r)
			d.tick(0)
			for i := range 39 {
				d.check(i)
			}
			d.takeOver(wrong)
			d.same(nil, d.tick(2), "one node has not checked the version")
			d.same(nil, d.tick(99), "before the deadline of the preflight")
			d.expect("False", reasonPreflight, "1 have not answered")
			canary := d.tick(1)
			if len(canary) == 0 {
				t.Fatalf("no canary at the deadline: %+v", d.last)
			}

			d.run(canary...)
			wave := d.tick(2)
			d.run(wave[len(wave)/4:]...)
			d.tick(50)
			d.takeOver(wrong)
			d.same(wave, d.tick(2), "some nodes of a wave are silent")
			d.same(wave, d.tick(99), "before the deadline of the wave")
			if next := d.tick(1); len(next) <= len(wave) {
				t.Errorf("no wave at the deadline: %+v", d.last)
			}

			r.Nodes = []string{"n01", "n02"}
			d = newDrill(t, 40, r).checked()
			d.tick(0)
			d.run(1)
			d.takeOver(wrong)
			d.tick(2)
			d.tick(99)
			d.expect("False", reasonCanaries, "1 have not answered")
			d.tick(1)
			d.expect("False", reasonSilent, "n02 has not answered")
			d.resume(1)
			d.m.Status.Rollout.Since = d.now.Add(wrong)
			d.tick(2)
			d.tick(99)
			d.expect("False", reasonCanaries, "1 have not answered")
			if next := d.tick(1); len(next) <= 2 {
				t.Errorf("no wave after resume: %+v", d.last)
			}
		})
	}
}

// A state that this process could not write begins its deadline no earlier, and does not have the state before it soak
// again.
func TestStateIsNotWritten(t *testing.T) {
	d := newDrill(t, 40, api.Rollout{SoakSeconds: new(10), DeadlineSeconds: new(100), Waves: []int{50, 100}}).checked()
	canary := d.tick(0)
	d.run(canary...)
	d.tick(2)
	before := *d.m.Status.Rollout
	for range 50 { // the API server refuses each of them
		if len(d.tick(10)) == len(canary) {
			t.Fatalf("the canaries soak again: %+v", d.last)
		}
		d.m.Status.Rollout = new(before)
	}
	wave := d.tick(10)
	d.run(wave[len(wave)/4:]...)
	d.tick(99)
	if !d.wave.green.IsZero() {
		t.Error("the wave soaks before the deadline")
	}
	d.tick(1)
	if next := d.tick(10); len(next) != 40 {
		t.Errorf("%d nodes have the version after the deadline", len(next))
	}
}
