// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestAddTests: a package's directory in the machine holds its files but no Go source and no other package.
func TestAddTests(t *testing.T) {
	source, root := t.TempDir(), t.TempDir()
	for _, name := range []string{"kerb.yaml", "a.go", "a_test.go", "testdata/deep/x", "other/y"} {
		if err := writeFile(filepath.Join(source, name), name, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	binary := filepath.Join(t.TempDir(), "0.test")
	if err := writeFile(binary, "binary", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := addTests(root, []testBinary{{"modules/a", source, binary}}); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(root, path)
		got[rel] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"matrix/plan":                   "modules/a\n",
		"src/modules/a/kerb.yaml":       "kerb.yaml",
		"src/modules/a/testdata/deep/x": "testdata/deep/x",
		"src/modules/a/test.bin":        "binary",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Fatal(d)
	}
}

func TestSettingsQuote(t *testing.T) {
	p := guestPlan{nonce: "@@n", timeout: 90e9, run: "^(A|B)$", skip: "it's"}
	want := "nonce=@@n\nlimit=90\nrun='^(A|B)$'\nskip='it'\\''s'\n"
	if d := cmp.Diff(want, p.settings()); d != "" {
		t.Fatal(d)
	}
}
