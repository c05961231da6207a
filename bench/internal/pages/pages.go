// SPDX-License-Identifier: Apache-2.0

// Package pages lets tests check or update generated parts of the documentation.
package pages

import (
	"flag"
	"os"
	"strings"
	"testing"
)

// Update makes tests write the parts instead of comparing them.
var Update = flag.Bool("update", false, "regenerate parts of docs from the kept reports")

// Check compares parts of a page, by name, with the expected text, or writes them with -update. In the page, each part
// is between the comments `begin NAME` and `end NAME`.
func Check(t *testing.T, page string, parts map[string]string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for name, part := range parts {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
		before, rest, begins := strings.Cut(want, begin)
		_, after, ends := strings.Cut(rest, end)
		if !begins || !ends {
			t.Fatalf("%s has no markers for %s", page, name)
		}
		want = before + begin + part + end + after
	}
	if want == string(text) {
		return
	}
	if !*Update {
		t.Fatalf("%s does not match the kept reports: go test -run %s -update", page, t.Name())
	}
	if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
