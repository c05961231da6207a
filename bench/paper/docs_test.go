// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/bench/internal/pages"
)

const (
	page    = "../../docs/reproduction.md"
	kept    = "../../docs/figures/paper-%s.json.gz"
	figures = "figures/paper" // relative to the page
)

// docs/reproduction.md matches the kept report of each work, and docs/figures/paper its plots.
func TestPage(t *testing.T) {
	drawn, sections := t.TempDir(), map[string]string{}
	for _, w := range works {
		r, err := readReport(strings.ReplaceAll(kept, "%s", w.Name), w)
		if err != nil {
			t.Fatal(err)
		}
		if r.Mode == Quick {
			t.Errorf("the report of %s is of a smoke run", w.Name)
		}
		var section bytes.Buffer
		if err := r.write(&section, w, figures); err != nil {
			t.Fatal(err)
		}
		if err := r.draw(w, drawn); err != nil {
			t.Fatal(err)
		}
		sections[w.Name] = section.String()
	}
	at := filepath.Join(filepath.Dir(page), filepath.FromSlash(figures))
	if *pages.Update {
		replaceFigures(t, drawn, at)
	}
	compareFigures(t, drawn, at)
	pages.Check(t, page, sections)
}

func replaceFigures(t *testing.T, drawn, at string) {
	t.Helper()
	if err := os.RemoveAll(at); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(at, os.DirFS(drawn)); err != nil {
		t.Fatal(err)
	}
}

func compareFigures(t *testing.T, drawn, at string) {
	t.Helper()
	got, want := svgs(t, at), svgs(t, drawn)
	if !slices.Equal(got, want) || len(want) == 0 {
		t.Fatalf("%s has %v, the reports give %v", at, got, want)
	}
	for _, name := range want {
		a, _ := os.ReadFile(filepath.Join(at, name))
		if b, _ := os.ReadFile(filepath.Join(drawn, name)); !bytes.Equal(a, b) {
			t.Errorf("%s is not what the report has: go test ./bench/paper -run TestPage -update", name)
		}
	}
}

func svgs(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		names = append(names, filepath.Base(f))
	}
	return names
}
