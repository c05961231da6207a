// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"errors"
	"os"
	"testing"

	"github.com/kerb-edge/kerb/bench"
)

// Every controller has all kinds of messages during a flood, and its instructions are back at the sensors.
func TestControllers(t *testing.T) {
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("the emulated machines are too slow for the rates")
	}
	c := &controller{*newExperiment(t, controllerSources...)}
	for _, b := range boxes {
		t.Run(b.name, func(t *testing.T) {
			p, err := c.place(b.hook)
			if errors.Is(err, bench.ErrNotBuilt) || errors.Is(err, bench.ErrLeftOut) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatalf("%.600v", err)
			}
			if err := c.measureBox(t.Context(), b, p, "flood"); err != nil {
				t.Fatal(err)
			}
			r := c.run.Report()
			for i, kind := range kinds {
				get := func(metric, stat string) (float64, bool) {
					cell, ok := r.Find(b.name, kind+"/flood", metric, stat)
					return cell.Value, ok
				}
				if v, ok := get("to_program", "p50"); (!ok || v <= 0) && (b.way != "kernel" || i > 0) {
					t.Errorf("%s: %v us to the program", kind, v)
				}
				if v, ok := get("to_sender", "p50"); ok != (i < 2) || i < 2 && v <= 0 {
					t.Errorf("%s: %v us to the sender", kind, v)
				}
				if lost, ok := get("lost", "sum"); !ok || i == 0 && lost > 0 {
					t.Errorf("%s: %v messages lost", kind, lost)
				}
				if cpu, ok := get("cpu", "p50"); !ok || cpu <= 0 {
					t.Errorf("%s: %v cores", kind, cpu)
				}
			}
		})
	}
	if unsound := c.run.Report().Unsound; len(unsound) > 0 {
		t.Error(unsound)
	}
}
