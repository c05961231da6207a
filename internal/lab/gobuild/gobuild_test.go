// SPDX-License-Identifier: Apache-2.0

package gobuild

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A program is linked again only if its source or the flags have changed. Earlier copies remain unchanged.
func TestBuild(t *testing.T) {
	t.Chdir(t.TempDir())
	write(t, "go.mod", "module kerb.test/m\n\ngo 1.24\n")
	source := func(says string) {
		write(t, "sub/main.go", "package main\n\nvar end = \".\"\n\nfunc main() { print(\""+says+"\", end) }\n")
	}
	source("one")
	expect(t, "a", "one.")
	before := linked(t)
	expect(t, "b", "one.")
	if after := linked(t); len(before) != 1 || len(after) != 1 || !os.SameFile(before[0], after[0]) {
		t.Errorf("it was linked again: %v, then %v", before, after)
	}
	expect(t, "c", "one!", "-ldflags=-X main.end=!")
	source("two")
	expect(t, "b", "two.")
	if got := says(t, "a"); got != "one." {
		t.Errorf("the program built before prints %q", got)
	}
	source("no Go: \"")
	if err := Build("d", "./sub"); err == nil || !strings.Contains(err.Error(), "main.go:5") {
		t.Errorf("of invalid source: %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, program, want string, flags ...string) {
	t.Helper()
	if err := Build(program, "./sub", flags...); err != nil {
		t.Fatal(err)
	}
	if got := says(t, program); got != want {
		t.Errorf("it prints %q, want %q", got, want)
	}
}

func says(t *testing.T, program string) string {
	t.Helper()
	out, err := exec.Command("./" + program).CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// linked returns the cached programs.
func linked(t *testing.T) (programs []os.FileInfo) {
	t.Helper()
	paths, err := filepath.Glob(cacheDir + "/sub-*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(path, ".lock") {
			programs = append(programs, info)
		}
	}
	return programs
}
