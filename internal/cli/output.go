// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"text/tabwriter"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/yamldoc"
)

// print writes v as JSON or YAML if requested, and otherwise calls table.
func (a *app) print(w io.Writer, v any, table func(io.Writer)) error {
	switch a.output {
	case "json":
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		return encoder.Encode(v)
	case "yaml":
		data, err := yamldoc.Encode(v)
		if err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	}
	aligned := tabwriter.NewWriter(visible{coloured(w)}, 0, 0, 2, ' ', tabwriter.DiscardEmptyColumns)
	table(aligned)
	return aligned.Flush()
}

// coloured adds colours for terminals, unless NO_COLOR is set (https://no-color.org).
func coloured(w io.Writer) io.Writer {
	if !wantsColour(w) {
		return w
	}
	return painter{w}
}

func wantsColour(w io.Writer) bool {
	return isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// painter colours errors and the lines of a diff. Each Write must consist of whole lines.
type painter struct{ io.Writer }

var paints = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`(?m)^\+.*$`), "\x1b[32m$0\x1b[0m"},
	{regexp.MustCompile(`(?m)^-.*$`), "\x1b[31m$0\x1b[0m"},
	{regexp.MustCompile(`\bno: \w+`), "\x1b[31m$0\x1b[0m"},
	{regexp.MustCompile(`(?m)\bFalse \(\w+\)`), "\x1b[31m$0\x1b[0m"},
}

func (p painter) Write(text []byte) (int, error) {
	out := text
	for _, paint := range paints {
		out = paint.pattern.ReplaceAll(out, []byte(paint.with))
	}
	if _, err := p.Writer.Write(out); err != nil {
		return 0, err
	}
	return len(text), nil
}

// visible makes control characters visible, since output may contain text of packages, control planes and programs on
// the node, which must not control the terminal.
type visible struct{ io.Writer }

func (v visible) Write(p []byte) (int, error) {
	if _, err := v.Writer.Write(bytes.Map(picture, p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// picture returns the printable character for a control character, from Unicode's Control Pictures if it has one.
func picture(r rune) rune {
	switch {
	case r == '\n', r == '\t':
		return r
	case r < ' ':
		return '\u2400' + r
	case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
		return unicode.ReplacementChar
	}
	return r
}

// line writes one row of a table. Empty cells are a dash, so that columns can be counted.
func line(w io.Writer, cells ...any) {
	text := make([]string, len(cells))
	for i, cell := range cells {
		text[i] = fmt.Sprint(cell)
		if text[i] == "" {
			text[i] = "-"
		}
	}
	fmt.Fprintln(w, strings.Join(text, "\t"))
}

// printLines writes each value on a line of its own.
func printLines[T any](w io.Writer, all []T) {
	for _, v := range all {
		fmt.Fprintln(w, v)
	}
}

// field writes one line of a description, unless there is nothing to say.
func field(w io.Writer, name string, value any) {
	if text := fmt.Sprint(value); text != "" && text != "[]" {
		fmt.Fprintf(w, "%s:\t%s\n", name, text)
	}
}

func printConditions(w io.Writer, conditions []v1alpha1.Condition) {
	for _, c := range conditions {
		field(w, c.Type, strings.TrimSpace(fmt.Sprintf("%s (%s) %s", c.Status, c.Reason, c.Message)))
	}
}
