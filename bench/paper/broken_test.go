// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/version"
)

// publishedFigures returns the figures of a work's rows, in units of the experiment. Of a figure in two rows, last
// selects the last one, otherwise the first.
func publishedFigures(w *Work, last bool) *Report {
	values := map[value]float64{}
	for _, t := range w.Tables {
		rows := slices.Clone(t.Rows)
		if !last {
			slices.Reverse(rows)
		}
		for _, row := range rows {
			by := row.By
			if by == 0 {
				by = 1
			}
			figures := row.Ratios
			if figures == nil {
				figures = row.Published
			} else {
				by = 1
			}
			for config, v := range figures {
				values[value{t.Name, config, strings.ReplaceAll(row.Load, "*", "400"), row.Metric, row.Stat}] = v / by
			}
			if figures != nil && w.Name == "riegel" {
				values[value{t.Name, "direct", row.Load, row.Metric, row.Stat}] = 1 // the claims only mention it
			}
		}
	}
	return reportOf(values)
}

// The claims of a work hold for its published figures, to the last digit.
func TestPublishedFiguresHold(t *testing.T) {
	// The number of claims that the published figures suffice to evaluate.
	judged := map[string]int{"weinhold": 4, "gallego": 6, "simas": 33, "riegel": 4, "le": 2}
	for _, w := range works {
		for _, last := range []bool{false, true} {
			n := 0
			for _, c := range w.Claims {
				switch v := c.evaluate(publishedFigures(w, last)); v.outcome {
				case holds:
					n++
				case holdsNot:
					t.Errorf("%s: %s: %+v", w.Name, c.Text, v)
				}
			}
			if n != judged[w.Name] {
				t.Errorf("%s: of its own figures %d claims hold, not %d", w.Name, n, judged[w.Name])
			}
		}
	}
}

// Zeros, which only a broken run yields, give no verdict, nor does an invalid table.
func TestBrokenRunsSettleNothing(t *testing.T) {
	for _, w := range works {
		for i, c := range w.Claims {
			zeros, unsound := publishedFigures(w, true), publishedFigures(w, true)
			for _, p := range zeros.Parts {
				for j := range p.Report.Cells {
					p.Report.Cells[j].Value = 0
				}
			}
			for _, p := range unsound.Parts {
				p.Report.Unsound = []string{"answers were wrong"}
			}
			accuracy := strings.Contains(c.Text, "accuracy") // may be 0
			if v := c.evaluate(zeros); v.outcome != notMeasured && !(accuracy && v.outcome == holdsNot) {
				t.Errorf("%s, claim %d of zeros: %+v", w.Name, i, v)
			}
			if v := c.evaluate(unsound); v.outcome != notMeasured {
				t.Errorf("%s, claim %d, not sound: %+v", w.Name, i, v)
			}
		}
	}
	r := publishedWeinhold()
	for i := range r.part("threads").Report.Cells {
		r.part("threads").Report.Cells[i].Value = 0
	}
	if v := weinholdClaims[5].evaluate(r); v.outcome != notMeasured {
		t.Errorf("lines of zeros: %+v", v)
	}
}

// The maximum number of threads means no loss: if it is too low, the ratio is unknown.
func TestMostThreads(t *testing.T) {
	for _, tc := range []struct {
		user, mixed, kernel float64
		want                string
	}{
		{180, 400, 400, holds}, {210, 400, 400, notMeasured}, {400, 400, 400, notMeasured}, {209, 400, 390, holdsNot},
		{400, 300, 400, holdsNot}, {200, 390, 400, holds},
	} {
		r := publishedWeinhold()
		for config, v := range map[string]float64{"user": tc.user, "mixed": tc.mixed, "kernel": tc.kernel} {
			set(r.part("loss").Report, config, "lossfree_threads", "p50", v)
		}
		if v := weinholdClaims[4].evaluate(r); v.outcome != tc.want {
			t.Errorf("%+v: %+v", tc, v)
		}
	}
}

func keptFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "r.json")
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// An incomplete report is printed with the figures that it has, without verdicts.
func TestIncompleteReports(t *testing.T) {
	for _, w := range works {
		for _, broken := range [][2]string{{"cells", ""}, {"series", ""}, {"series", `,"rounds":[]`},
			{"series", `,"rounds":[[]]`}, {"histograms", `,"bins":[]`}, {"histograms", `,"bins":[[0,0]]`}} {
			t.Run(w.Name+", "+strings.Join(broken[:], ""), func(t *testing.T) {
				var parts []string
				for _, table := range w.Tables {
					parts = append(parts, fmt.Sprintf(`{"work":%q,"mode":"short","table":%q,"report":{%q:[%s]}}`, w.Name,
						table.Name, broken[0], heads(table, broken[1])))
				}
				r, err := readReport(keptFile(t, fmt.Sprintf(`{"work":%q,"mode":"short","parts":[%s]}`, w.Name,
					strings.Join(parts, ","))), w)
				if err != nil {
					t.Fatal(err)
				}
				if err := r.write(io.Discard, w, "figures"); err != nil {
					t.Error(err)
				}
				if err := r.draw(w, t.TempDir()); err != nil {
					t.Error(err)
				}
				for _, c := range w.Claims {
					if v := c.evaluate(r); v.outcome != notMeasured {
						t.Errorf("%s: %+v", c.Text, v)
					}
				}
			})
		}
	}
}

// heads returns the beginnings of all series that the figures of a table show, each with an end appended.
func heads(table Table, end string) string {
	var all []string
	for _, f := range table.Figures {
		for _, c := range table.Configs {
			all = append(all, fmt.Sprintf(`{"config":%q,"load":%q,"metric":%q`, c.Name, table.Rows[0].Load, f.Metric)+end+"}")
		}
	}
	return strings.Join(all, ",")
}

// The parts of a report are of its work and counts.
func TestForeignParts(t *testing.T) {
	for _, head := range []string{`"work":"simas","mode":"published"`, `"work":"weinhold","mode":"quick"`} {
		path := keptFile(t, `{"work":"weinhold","mode":"published","parts":[{`+head+`,"table":"loss","report":{}}]}`)
		if _, err := readReport(path, &weinhold); err == nil || !strings.Contains(err.Error(), `"loss": belongs to`) {
			t.Errorf("%s: %v", head, err)
		}
	}
}

// Finished tables are the valid ones of the same program and kernel; leftovers of a killed run are ignored.
func TestResumeOfOthers(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, ".times.json123456"), []byte(`{"work":`), 0o644); err != nil {
		t.Fatal(err)
	}
	good := func() Part {
		return Part{Work: "weinhold", Mode: Short, Table: "times", Version: version.Version(),
			Report: &bench.Report{Kernel: bench.KernelRelease()}}
	}
	for name, change := range map[string]func(*Part){
		"": func(*Part) {}, "kernel": func(p *Part) { p.Report.Kernel = "1.0-other" },
		"version": func(p *Part) { p.Version = "v0.0.1" },
		"unsound": func(p *Part) { p.Report.Unsound = []string{"lost requests"} },
	} {
		p := good()
		change(&p)
		if err := bench.WriteJSON(resume(dir).path("times"), p); err != nil {
			t.Fatal(err)
		}
		if err := resume(dir).open(&weinhold, Short); err != nil {
			t.Error(err)
		}
		if _, ok, err := resume(dir).finished("times"); ok != (name == "") || err != nil {
			t.Errorf("%q: finished %v, %v", name, ok, err)
		}
	}
	empty, p := t.TempDir(), good()
	p.Report.Unsound = []string{"lost requests"}
	if err := resume(empty).keep(p); err != nil {
		t.Fatal(err)
	}
	if files, _ := os.ReadDir(empty); len(files) > 0 {
		t.Errorf("an unsound table was kept: %v", files)
	}
}

// A mean or median over rounds notes if there was a single round, which has no deviation.
func TestOneRound(t *testing.T) {
	row := Row{Label: "loss", Load: "l", Metric: "m", Stat: "p50", Unit: "threads", Over: "median"}
	r := &bench.Report{Cells: []bench.Cell{{Config: "a", Load: "l", Metric: "m", Stat: "p50", Value: 180,
		Rounds: []float64{180}}}}
	if line := row.line(Config{Name: "a"}, Config{Name: "a"}, r); line[2] != "180 (one round)" {
		t.Errorf("the median of one: %q", line)
	}
	row.Over = "stddev"
	if line := row.line(Config{Name: "a"}, Config{Name: "a"}, r); line[2] != missing {
		t.Errorf("the deviation of one: %q", line)
	}
}
