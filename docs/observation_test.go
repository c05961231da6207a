// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Each row of the table "What can be observed" names tests, and those exist.
func TestWhatCanBeObservedIsTested(t *testing.T) {
	text, err := os.ReadFile("operating.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## What can be observed\n")
	section, _, _ = strings.Cut(section, "\n## ")
	named := regexp.MustCompile("\\[`(Test\\w+)`\\]\\((\\S+_test\\.go)\\)")
	rows := 0
	for line := range strings.Lines(section) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| an operator") {
			continue
		}
		rows++
		tests := named.FindAllStringSubmatch(line, -1)
		if len(tests) == 0 || len(tests) != strings.Count(line, "`Test") {
			t.Errorf("a row names no test, or one without its file: %s", line)
		}
		for _, test := range tests {
			source, err := os.ReadFile(test[2])
			if err != nil || !strings.Contains(string(source), "\nfunc "+test[1]+"(t *testing.T) {\n") {
				t.Errorf("%s does not have %s: %v", test[2], test[1], err)
			}
		}
	}
	if rows < 8 {
		t.Errorf("%d rows in the section", rows)
	}
}
