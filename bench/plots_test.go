// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func everyPlot(string) bool { return true }

// checkPlot reads a plot for both backgrounds.
func checkPlot(t *testing.T, path string) {
	t.Helper()
	for _, theme := range themes {
		file := path + "-" + theme.name + ".svg"
		data, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			continue
		}
		d := xml.NewDecoder(bytes.NewReader(data))
		for err == nil {
			_, err = d.Token()
		}
		if !errors.Is(err, io.EOF) || !bytes.Contains(data, []byte("<svg")) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func plotsIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*-light.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		names = append(names, strings.TrimSuffix(filepath.Base(file), "-light.svg"))
	}
	return names
}

func TestPlotCommand(t *testing.T) {
	report := &Report{Experiment: "toy", Baseline: "a"}
	for i, load := range []string{"x/1", "x/2", "x/4", "y/1", "y/2", "y/4"} {
		for j, config := range []string{"a", "b", "c"} {
			report.Cells = append(report.Cells, Cell{Config: config, Load: load, Metric: "time", Stat: "p50",
				Value: float64((i + 1) * (j + 1)), Unit: "ns"})
		}
	}
	dir := t.TempDir()
	for _, name := range []string{"toy.json", "toy.json.gz"} {
		file, plots := filepath.Join(dir, name), filepath.Join(dir, name+".plots")
		if err := WriteJSON(file, report); err != nil {
			t.Fatal(err)
		}
		if out, err := runCommand("plot", file, "--plots", plots, "--only", "toy-time-p50-y", "--configs", "c,b", "--ratio",
			"--title", "Time per load", "--x", "load"); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
		if got := plotsIn(t, plots); !slices.Equal(got, []string{"toy-time-p50-y"}) {
			t.Errorf("%s: plots %v", name, got)
		}
		checkPlot(t, filepath.Join(plots, "toy-time-p50-y"))
		svg, _ := os.ReadFile(filepath.Join(plots, "toy-time-p50-y-light.svg"))
		legend := regexp.MustCompile(`>([abc])</text>`).FindAllStringSubmatch(string(svg), -1)
		if len(legend) != 2 || legend[0][1] != "c" {
			t.Errorf("%s: legend %v", name, legend)
		}
		for _, label := range []string{"ratio to a", "Time per load", "load"} {
			if !strings.Contains(string(svg), ">"+label+"<") {
				t.Errorf("%s: no label %q", name, label)
			}
		}
	}
	for _, c := range [][]string{
		{"--only", "toy-size-*"}, {"--configs", "d"}, {"--loads", "z/*"},
	} {
		if _, err := runCommand(append([]string{"plot", filepath.Join(dir, "toy.json"), "--plots", dir},
			c...)...); err == nil {
			t.Errorf("%v: no error, and nothing is drawn", c)
		}
	}
	for name, text := range map[string]string{"bad.json": "no JSON", "bad.json.gz": "not packed"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := runCommand("plot", filepath.Join(dir, name)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
