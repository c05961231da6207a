// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	fenced   = regexp.MustCompile("(?ms)^```.*?^```")
	linked   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ +(.+)$`)
	unslug   = regexp.MustCompile(`[^a-z0-9 _-]`)
	external = regexp.MustCompile(`^[a-z]+:`)
)

// Every relative link of a document leads to a file, and every anchor to a heading in it.
func TestLinks(t *testing.T) {
	n := 0
	for path, text := range documents(t) {
		for _, m := range linked.FindAllStringSubmatch(text, -1) {
			if !external.MatchString(m[1]) {
				checkLink(t, path, m[1])
				n++
			}
		}
	}
	if n < 100 {
		t.Fatalf("%d links", n)
	}
}

// Every table begins with a header and the line of hyphens below it.
func TestTables(t *testing.T) {
	n := 0
	for path, text := range documents(t) {
		before := []string{"", ""}
		for line := range strings.Lines(text) {
			line = strings.TrimRight(line, "\n") // with the indentation of code blocks
			switch begins := !strings.HasPrefix(before[0], "|") && strings.HasPrefix(before[1], "|"); {
			case begins && (!rule.MatchString(line) || cells(line) != cells(before[1])):
				t.Errorf("%s: %q is no header of a table", path, before[1])
			case begins:
				n++
			}
			before = []string{before[1], line}
		}
	}
	if n < 100 {
		t.Fatalf("%d tables", n)
	}
}

var rule = regexp.MustCompile(`^\|[-:| ]+\|$`)

func cells(row string) int { return strings.Count(strings.ReplaceAll(row, `\|`, ""), "|") }

// documents are those of the repository, by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (path == "../out" || strings.HasPrefix(d.Name(), ".") && d.Name() != "..") {
			return fs.SkipDir
		}
		if err == nil && filepath.Ext(path) == ".md" {
			all[path] = document(t, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func checkLink(t *testing.T, from, link string) {
	t.Helper()
	file, anchor, _ := strings.Cut(link, "#")
	to := filepath.Join(filepath.Dir(from), file)
	if file == "" {
		to = from
	}
	if _, err := os.Stat(to); err != nil {
		t.Errorf("%s links to %s: %v", from, link, err)
		return
	}
	if anchor != "" && !anchors(document(t, to))[anchor] {
		t.Errorf("%s links to %s, which is no heading", from, link)
	}
}

// document returns a document without its code blocks.
func document(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fenced.ReplaceAllString(string(text), "")
}

// anchors returns the anchors of a document's headings, as code hosts name them.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		out[strings.ReplaceAll(unslug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return out
}
