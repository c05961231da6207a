// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/kerb-edge/kerb/bench"
)

// Every controller receives all kinds of messages during a flood, and its instructions reach the sensors.
func TestControllers(t *testing.T) {
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("the emulated machines are too slow for the rates")
	}
	c := &controller{experiment: *newExperiment(t, controllerSources...)}
	c.noDPDK = c.tools.compileDPDK(t.Context())
	if c.noDPDK != nil && exec.Command("pkg-config", "--exists", "libdpdk").Run() == nil {
		t.Error(c.noDPDK)
	}
	for _, b := range boxes {
		t.Run(b.name, func(t *testing.T) {
			p, err := c.place(b.hook)
			if err == nil {
				err = c.possible(b)
			}
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
			if m, ok := r.Find(b.name, "all/flood", "memory", "p50"); !ok || m.Value <= 0 {
				t.Errorf("memory: %+v", m)
			}
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
				if _, ok := get("unsent", "sum"); !ok {
					t.Errorf("%s: messages that were not sent are not counted", kind)
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

func discarding() *controller {
	run := bench.NewRun(bench.Experiment{}, true, bench.MinRounds, nil, io.Discard)
	return &controller{experiment: experiment{run: run}}
}

// A flood that exits early invalidates the run, and a slow one causes a note, since rounds must be measured under the
// flood.
func TestFloodIsChecked(t *testing.T) {
	full, slow := `{"sent":100000,"seconds":1.0}`, `{"sent":100000,"seconds":1.1}`
	for name, c := range map[string]struct {
		program        string
		line           string
		unsound, notes int
	}{
		"as wanted":          {"kill -KILL $$", full, 0, 0},
		"slow":               {"kill -KILL $$", slow, 0, 1},
		"killed too early":   {"kill -KILL $$", "", 1, 0},
		"ended with success": {"exit 0", full, 1, 0},
		"failed":             {"exit 3", "", 1, 0},
		"another signal":     {"kill -TERM $$", full, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := discarding()
			b.checkFlood([]byte(c.line), exec.Command("sh", "-c", c.program).Run(), "")
			b.noteFloods()
			if r := b.run.Report(); len(r.Unsound) != c.unsound || len(r.Notes) != c.notes {
				t.Errorf("unsound: %q, notes: %q", r.Unsound, r.Notes)
			}
		})
	}
}

// The rates of all rounds are in one note.
func TestFloodsAreNotedOnce(t *testing.T) {
	b := discarding()
	for _, sent := range []int{70000, 100000, 62000} {
		line := fmt.Appendf(nil, `{"sent":%d,"seconds":1.0}`, sent)
		b.checkFlood(line, exec.Command("sh", "-c", "kill -KILL $$").Run(), "")
	}
	b.noteFloods()
	want := []string{"flood: 62000 to 100000 packets/s were sent, of 100000 requested, in 3 rounds"}
	if r := b.run.Report(); !slices.Equal(r.Notes, want) || len(r.Unsound) > 0 {
		t.Errorf("notes: %q, unsound: %q", r.Notes, r.Unsound)
	}
}
