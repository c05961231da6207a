// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Every test that security.md names as a proof exists.
func TestProofsExist(t *testing.T) {
	text, err := os.ReadFile("security.md")
	if err != nil {
		t.Fatal(err)
	}
	exist := tests(t, "..")
	named := regexp.MustCompile("`(Test[A-Z][A-Za-z0-9]*)`").FindAllStringSubmatch(string(text), -1)
	if len(named) < 40 {
		t.Fatalf("only %d proofs are named", len(named))
	}
	for _, m := range named {
		if !slices.Contains(exist, m[1]) {
			t.Errorf("security.md names %s, which is no test", m[1])
		}
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "| ") && strings.Count(line, "|") == 3 && !strings.Contains(line, "proven by") &&
			!strings.Contains(line, "`Test") {
			t.Errorf("a line without a proof: %s", line)
		}
	}
}

// tests returns the names of all tests below a directory.
func tests(t *testing.T, root string) (names []string) {
	t.Helper()
	declaration := regexp.MustCompile(`(?m)^func (Test[A-Z][A-Za-z0-9]*)\(`)
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range declaration.FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
