// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"strings"
	"testing"
	"unicode/utf8"
)

const columns, tab = 120, 4

// longLines is how many lines below each directory at the top are longer than 120 columns, with tabs of 4, rounded up
// to hundreds. A number may only go down.
var longLines = map[string]int{
	"api": 100, "bench": 400, "bpf": 200, "cmd": 100, "docs": 100, "examples": 100, "integrations": 100, "intercept": 100,
	"internal": 1500, "kmod": 100,
	"lib": 100, "modules": 1500, "sdk": 100, "test": 300,
}

// Lines have at most 120 columns. Older ones that are longer are counted, so that no new ones come.
func TestLongLines(t *testing.T) {
	found := map[string]int{}
	for _, suffix := range []string{".go", ".c", ".h"} {
		for _, file := range files(t, suffix) {
			if strings.Contains(file, "_gen.") || strings.Contains(file, "testdata/") {
				continue
			}
			area, _, _ := strings.Cut(file, "/")
			found[area] += countLong(read(t, file))
		}
	}
	for area, n := range found {
		t.Logf("%s: %d", area, n)
		if n > longLines[area] {
			t.Errorf("%s has %d lines over %d columns, %d are allowed: break the new ones", area, n, columns, longLines[area])
		}
	}
}

func countLong(text string) (n int) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if utf8.RuneCountInString(line)+(tab-1)*strings.Count(line, "\t") > columns {
			n++
		}
	}
	return n
}
