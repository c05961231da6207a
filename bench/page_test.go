// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of docs from the kept reports")

// checkTables compares what stands between comments in a page with tables, by the names in these comments, or writes
// them with -update.
func checkTables(t *testing.T, page string, tables map[string]string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for name, table := range tables {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->"
		before, rest, begins := strings.Cut(want, begin)
		_, after, ends := strings.Cut(rest, end)
		if !begins || !ends {
			t.Fatalf("%s has no place for %s", page, name)
		}
		want = before + begin + table + end + after
	}
	if want == string(text) {
		return
	}
	if !*update {
		t.Fatalf("%s is not what the kept report says: go test ./bench -run %s -update", page, t.Name())
	}
	if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func row(cells ...string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

func head(cells ...string) string {
	return row(cells...) + "|" + strings.Repeat("---|", len(cells)) + "\n"
}
