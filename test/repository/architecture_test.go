// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const architecture = "ARCHITECTURE.md"

// ARCHITECTURE.md names every top-level directory and every package of internal in a table.
func TestArchitectureIsComplete(t *testing.T) {
	text := read(t, architecture)
	for _, dir := range append(topLevel(t), packages(t, "internal")...) {
		if !strings.Contains(text, "\n| `"+dir+"` | ") {
			t.Errorf("%s has no row for %s", architecture, dir)
		}
	}
}

var reference = regexp.MustCompile("`([A-Za-z0-9_.]+(?:/[A-Za-z0-9_./-]+)+)(?::([A-Za-z_0-9]+))?`")

// Every path in ARCHITECTURE.md exists, and every name after a path is defined or declared there.
func TestArchitectureIsTrue(t *testing.T) {
	top := append(topLevel(t), ".github")
	checked := 0
	for _, match := range reference.FindAllStringSubmatch(read(t, architecture), -1) {
		path, name := match[1], match[2]
		first, _, _ := strings.Cut(path, "/")
		if !slices.Contains(top, first) {
			continue
		}
		checked++
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			t.Errorf("%s names %s: %v", architecture, path, err)
			continue
		}
		if name != "" && !defines(read(t, path), name) {
			t.Errorf("%s names %s in %s, which does not define it", architecture, name, path)
		}
	}
	if checked < 60 {
		t.Errorf("only %d references found", checked)
	}
}

// defines reports whether a text defines a function, type or interface method in Go, or a function in C.
func defines(text, name string) bool {
	return regexp.MustCompile(
		`(?m)^(func (\([^)]*\) )?` + name + `[\[(]|type ` + name + ` |\t` + name + `\(|(static|SEC|int).*\b` + name + `\()`).MatchString(text)
}

// topLevel returns the top-level directories without those that builds create.
func topLevel(t *testing.T) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && e.Name() != "out" && e.Name() != "dist" {
			out = append(out, e.Name())
		}
	}
	return out
}

// packages returns the directories below dir with Go files.
func packages(t *testing.T, dir string) (out []string) {
	t.Helper()
	for _, file := range files(t, ".go") {
		pkg := filepath.Dir(file)
		if strings.HasPrefix(pkg, dir+"/") && !strings.Contains(pkg, "testdata") && !strings.Contains(pkg, "templates") &&
			!slices.Contains(out, pkg) {
			out = append(out, pkg)
		}
	}
	return out
}
