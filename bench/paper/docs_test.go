// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reproduction.md and its figures from the kept reports")

const (
	page    = "../../docs/reproduction.md"
	kept    = "../../docs/figures/paper-%s.json.gz"
	figures = "figures/paper" // from the page
)

// docs/reproduction.md has what the kept report of each work says, and docs/figures/paper the plots.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	drawn := t.TempDir()
	want := string(text)
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
		want = replaceSection(t, want, w.Name, section.String())
	}
	at := filepath.Join(filepath.Dir(page), filepath.FromSlash(figures))
	if *update {
		writePage(t, want, drawn, at)
	} else if want != string(text) {
		t.Error("docs/reproduction.md is not what the kept reports say: go test ./bench/paper -run TestPage -update")
	}
	compareFigures(t, drawn, at)
}

func replaceSection(t *testing.T, text, name, section string) string {
	t.Helper()
	before, rest, found := strings.Cut(text, "<!-- begin "+name+" -->\n")
	_, after, ended := strings.Cut(rest, "<!-- end "+name+" -->")
	if !found || !ended {
		t.Fatalf("%s has no section for %s", page, name)
	}
	return before + "<!-- begin " + name + " -->\n" + section + "<!-- end " + name + " -->" + after
}

func writePage(t *testing.T, text, drawn, at string) {
	t.Helper()
	if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
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
