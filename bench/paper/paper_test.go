// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/benchtest"
)

func TestMain(m *testing.M) { os.Exit(benchtest.Main(m)) }

// Works are complete: everything that tables refer to exists, and every claim is evaluated or has a reason why not.
func TestWorks(t *testing.T) {
	for _, w := range works {
		names := map[string]bool{}
		for _, table := range w.Tables {
			if _, ok := bench.Find(table.Experiment); !ok {
				t.Errorf("%s %s: no experiment %q", w.Name, table.Name, table.Experiment)
			}
			if names[table.Name] || len(table.Rows) == 0 || len(table.Configs) == 0 || table.Title == "" {
				t.Errorf("%s %s: twice, or without rows, configs or title", w.Name, table.Name)
			}
			names[table.Name] = true
			if table.Counts == [modes]string{} {
				t.Errorf("%s %s does not say how much is measured", w.Name, table.Name)
			}
			for mode := range modes {
				n := len(table.Loads[mode])
				if n > 0 && (table.Rounds[mode] == 0 || table.Takes[mode] == 0) || n == 0 && mode != Quick {
					t.Errorf("%s %s: %d loads in mode %v, %d rounds, %v", w.Name, table.Name, n, mode, table.Rounds[mode],
						table.Takes[mode])
				}
			}
			for _, row := range table.Rows {
				for config := range row.Published {
					if !slices.Contains(table.configNames(), config) {
						t.Errorf("%s %s, %s: no config %q", w.Name, table.Name, row.Label, config)
					}
				}
			}
		}
		if len(w.Claims) == 0 {
			t.Errorf("%s claims nothing", w.Name)
		}
		for _, c := range w.Claims {
			if (c.Evaluate == nil) == (c.NotMeasured == "") || c.Where == "" {
				t.Errorf("%s: %q is neither judged nor left open, or both, or is nowhere", w.Name, c.Text)
			}
		}
	}
}

// toy returns a work of two tables, whose experiment runs f.
func toy(f func(ctx context.Context, table string) error) *Work {
	name := "toy"
	if _, taken := bench.Find(name); !taken {
		bench.Register(bench.Experiment{Name: name, Run: func(ctx context.Context, r *bench.Run) error {
			for _, load := range r.Loads() {
				if err := running(ctx, load); err != nil {
					return err
				}
				for _, c := range []bench.Sample{{Metric: "time", Stat: "p50", Unit: "us", Value: 2000}} {
					r.Record("a", load, c)
					c.Value /= 4
					r.Record("b", load, c)
				}
			}
			return nil
		}})
	}
	running = f
	table := func(name string) Table {
		return Table{Name: name, Title: "Table " + name, Shows: "Times", Experiment: "toy", Loads: Same([]string{name}),
			Rounds: Same(1), Configs: []Config{{"a", "theirs"}, {"b", ""}}, Rows: []Row{
				{Label: "median", Load: name, Metric: "time", Stat: "p50", Unit: "ms", By: 1e-3,
					Published: map[string]float64{"a": 4, "b": 3}},
				{Label: "gain", Load: name, Metric: "time", Stat: "p50", Unit: "us", Ratios: map[string]float64{"b": 0.606}},
				{Label: "energy", Load: name, Metric: "energy", Stat: "p50", Unit: "J"},
			}}
	}
	return &Work{Name: name, Title: "A toy", Tables: []Table{table("1"), table("2")}, Claims: []Claim{
		{Text: "b is faster", Where: "p. 1", Evaluate: func(f *results) (bool, string) {
			return f.of("2", "b", "2", "time", "p50") < f.of("2", "a", "2", "time", "p50"), "as seen"
		}},
		{Text: "b is slower", Where: "p. 2", Evaluate: func(f *results) (bool, string) {
			return f.of("2", "b", "2", "time", "p50") > f.of("2", "a", "2", "time", "p50"), "as seen"
		}},
		{Text: "b is cheap", Where: "p. 3", NotMeasured: "no meter"},
	}}
}

var running func(context.Context, string) error

func measure(t *testing.T, w *Work, mode Mode, dir string) (*Report, error) {
	t.Helper()
	return request{work: w, mode: mode, resume: resume(dir), progress: io.Discard}.run(t.Context())
}

func text(t *testing.T, r *Report, w *Work) string {
	t.Helper()
	var out bytes.Buffer
	if err := r.write(&out, w, ""); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// A run that stops in its second table resumes there, and does not repeat the first.
func TestResume(t *testing.T) {
	needsRoot(t)
	dir := t.TempDir()
	var measured []string
	killed := true
	w := toy(func(_ context.Context, table string) error {
		measured = append(measured, table)
		if table == "2" && killed {
			return errors.New("killed")
		}
		return nil
	})
	if _, err := measure(t, w, Short, dir); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("the first run: %v", err)
	}
	killed = false
	r, err := measure(t, w, Short, dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(measured, " "); got != "1 2 2" || len(r.Parts) != 2 {
		t.Errorf("measured %s, %d parts", got, len(r.Parts))
	}
	for _, p := range r.Parts {
		if p.Report.Machine == nil || p.Report.Kernel == "" {
			t.Errorf("part %s does not say on what machine", p.Table)
		}
	}
	if got := text(t, r, w); !strings.Contains(got, "fewer or shorter repetitions") {
		t.Errorf("the text does not tell the counts:\n%s", got)
	}
}

// The table has the published figures, ours, and the ratios of both; claims have verdicts.
func TestText(t *testing.T) {
	needsRoot(t)
	w := toy(func(context.Context, string) error { return nil })
	r, err := measure(t, w, Published, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Parts {
		p.Report.Machine = nil // otherwise the text contains its utilisation
	}
	got := text(t, r, w)
	for _, want := range []string{
		"| median, ms: a (theirs) | 4         | 2    | 1.000           | 1.000      |\n",
		"| median, ms: b          | 3         | 0.5  | 0.750           | 0.250      |\n",
		"| gain, us: b            | -         | 500  | 0.606           | 0.250      |\n",
		"- b is faster (p. 1): **holds**; as seen.\n",
		"- b is slower (p. 2): **does not hold**; as seen.\n",
		"- b is cheap (p. 3): **not measured here**; no meter.\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if strings.Contains(got, "energy") {
		t.Error("a figure that is neither published nor measured has a line")
	}
	// A report of one table has no verdict about another.
	r.Parts = r.Parts[:1]
	got = text(t, r, w)
	for _, want := range []string{"**Table 2.** Not in this report.", "b is faster (p. 1): **not measured here**; " +
		"missing in this report: time p50 of b in 2, time p50 of a in 2."} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, got)
		}
	}
	if r, err = measure(t, w, Quick, ""); err != nil {
		t.Fatal(err)
	}
	if got = text(t, r, w); strings.Contains(got, "holds") || !strings.Contains(got, "results of a smoke run mean "+
		"nothing") {
		t.Errorf("a smoke run judges claims:\n%s", got)
	}
}

// Memory of 0 MiB means that no program was counted: it is neither a figure nor a base of ratios.
func TestMemoryNotCounted(t *testing.T) {
	row := Row{Label: "memory", Load: "x", Metric: bench.MemoryMetric, Stat: "p50", Unit: "MiB"}
	r := &bench.Report{}
	for config, v := range map[string]float64{"a": 8, "b": 2, "none": 0} {
		r.Cells = append(r.Cells, bench.Cell{Config: config, Load: "x", Metric: bench.MemoryMetric, Stat: "p50", Value: v},
			bench.Cell{Config: config, Load: "x", Metric: "lost", Stat: "p50", Value: v})
	}
	for _, c := range []struct{ metric, config, base, ours, ratio string }{
		{bench.MemoryMetric, "b", "a", "2", "0.250"}, {bench.MemoryMetric, "none", "a", missing, missing},
		{bench.MemoryMetric, "b", "none", "2", missing}, {"lost", "none", "a", "0", "0.000"},
	} {
		row.Metric = c.metric
		line := row.line(Config{Name: c.config}, Config{Name: c.base}, r)
		if line[2] != c.ours || line[4] != c.ratio {
			t.Errorf("%s of %s: %q, to %s %q; want %q and %q", c.metric, c.config, line[2], c.base, line[4], c.ours, c.ratio)
		}
	}
}

// Directories and files of something else are refused before anything is measured.
func TestBadInput(t *testing.T) {
	w := toy(func(context.Context, string) error { t.Error("measured"); return nil })
	dir := func(name, content string) string {
		d := t.TempDir()
		if err := os.WriteFile(filepath.Join(d, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return d
	}
	file := filepath.Join(dir("x", ""), "x")
	for _, tc := range []struct{ dir, want string }{
		{dir("1.json", `{"work":"weinhold","mode":"short","table":"1","report":{}}`), "table of weinhold, mode short"},
		{dir("1.json", `{"work":"toy","mode":"published","table":"1","report":{}}`), "table of toy, mode published"},
		{dir("1.json", `{"work":"toy","mode":"short","table":"2","report":{}}`), "not a table"},
		{dir("1.json", `{"work":"toy","mode":"short","table":"1"}`), "table of toy, mode short"},
		{dir("1.json", `{"work":"toy","mode":"most","table":"1"}`), `unknown mode of a report "most"`},
		{dir("notes.txt", "mine"), "notes.txt"},
		{file, "not a directory"},
	} {
		_, err := measure(t, w, Short, tc.dir)
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "--resume "+tc.dir) {
			t.Errorf("%s: %v", tc.want, err)
		}
	}
	kept := func(parts string) string {
		return " --report " + dir("r", `{"work":"weinhold","mode":"short","parts":[`+parts+`]}`) + "/r"
	}
	for args, want := range map[string]string{
		"paper neumann":                                      `unknown work "neumann"; works are`,
		"paper weinhold --tables 9":                          `weinhold has no table "9"; it has times, loss, threads`,
		"paper weinhold --quick --short":                     "none of the others",
		"paper weinhold --report " + file:                    "is not a benchmark report",
		"paper simas --server-cpus 1":                        "no table of simas has a client and servers",
		"paper weinhold --tables threads --server-cpus 4096": "--server-cpus 4096: this machine has",
		"paper toy" + kept(""):                               `unknown work "toy"`,
		"paper weinhold" + kept(`{"table":"z"}`):             `"z"`,
		"paper weinhold" + kept(`{"table":"times"}`):         "complete",
		"paper weinhold --report " + filepath.Join(dir("r", `{"work":"toy","mode":"short"}`), "r"): `of "toy"`,
	} {
		cmd := bench.Command()
		cmd.SetArgs(strings.Fields(args))
		cmd.SetOut(io.Discard)
		cmd.SetErr(io.Discard)
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// Without a work, all are listed, with their tables and times.
func TestList(t *testing.T) {
	var out bytes.Buffer
	if err := list(&out); err != nil {
		t.Fatal(err)
	}
	for _, w := range works {
		for _, table := range w.Tables {
			for _, want := range []string{w.Title, table.Name + ": " + table.Title, table.Takes[Short].String()} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the list has no %q:\n%s", want, &out)
				}
			}
		}
	}
}

// The first table of every work is measured on real traffic, with two configs, and contains every figure.
func TestQuick(t *testing.T) {
	needsRoot(t)
	bench.Command() // sets the defaults of the experiments' flags
	for _, w := range works {
		t.Run(w.Name, func(t *testing.T) {
			r, err := request{work: w, mode: Quick, tables: []string{w.Tables[0].Name}, progress: io.Discard,
				before: func(run *bench.Run) {
					run.Rounds, run.Scale, run.Configs = 1, 1e-4, run.Configs[:2]
				}}.run(t.Context())
			if errors.Is(err, bench.ErrNotBuilt) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			for i := range r.Parts {
				table, _ := w.table(r.Parts[i].Table)
				checkRows(t, w, table, &r.Parts[i])
			}
			if err := r.draw(w, t.TempDir()); err != nil {
				t.Error(err)
			}
		})
	}
}

// checkRows checks that every row has a value, except for loads that smoke runs leave out and configs that cannot be
// measured.
func checkRows(t *testing.T, w *Work, table *Table, p *Part) {
	t.Helper()
	measured := 0
	for _, row := range table.Rows {
		for _, c := range table.configs(row) {
			if _, ok := row.ours(c, p.Report); ok {
				measured++
			} else if has(p.Report, c.Name, row.Load) && row.Over != "stddev" { // undefined for one round
				t.Errorf("%s %s, %s: no %s %s of %s", w.Name, table.Name, row.Label, row.Metric, row.Stat, c.Name)
			}
		}
	}
	if measured == 0 {
		t.Errorf("%s %s: nothing was measured: %v", w.Name, table.Name, p.Report.Notes)
	}
}

func has(r *bench.Report, config, load string) bool {
	return slices.ContainsFunc(r.Cells, func(c bench.Cell) bool {
		ok, _ := filepath.Match(load, c.Load)
		return ok && c.Config == config
	})
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}
