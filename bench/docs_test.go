// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const page = "../docs/benchmarks.md"

var (
	plotted = regexp.MustCompile(`(?m)^    kerb bench (plot (?:[^\n]*\\\n)*[^\n]*)$`)
	word    = regexp.MustCompile(`'[^']*'|[^\s\\]+`)
	shown   = regexp.MustCompile(`figures/[a-z0-9_-]+\.svg`)
)

// The plots of docs/benchmarks.md are those that its commands draw from the stored reports, and there are no others.
func TestDocumentedPlots(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, command := range plotted.FindAllStringSubmatch(string(text), -1) {
		args := word.FindAllString(command[1], -1)
		for i, arg := range args {
			args[i] = strings.Trim(arg, "'")
			if arg == "--plots" {
				args[i+1] = dir
			}
		}
		args[1] = filepath.Join("..", args[1])
		if out, err := runCommand(args...); err != nil {
			t.Errorf("kerb bench %s: %v: %s", command[1], err, out)
		}
	}
	figures := filepath.Join(filepath.Dir(page), "figures")
	drawn, kept := svgs(t, dir), svgs(t, figures)
	if !slices.Equal(drawn, kept) || len(drawn) == 0 {
		t.Fatalf("the commands draw %v, docs/figures has %v", drawn, kept)
	}
	for _, name := range drawn {
		want, _ := os.ReadFile(filepath.Join(dir, name))
		if got, _ := os.ReadFile(filepath.Join(figures, name)); !bytes.Equal(got, want) {
			t.Errorf("docs/figures/%s is not what its report has: run the commands at the end of docs/benchmarks.md", name)
		}
	}
	var linked []string
	for _, path := range shown.FindAllString(string(text), -1) {
		linked = append(linked, filepath.Base(path))
	}
	slices.Sort(linked)
	if !slices.Equal(linked, drawn) {
		t.Errorf("the page shows %v, the commands draw %v", linked, drawn)
	}
}

func svgs(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		names = append(names, filepath.Base(file))
	}
	return names
}
