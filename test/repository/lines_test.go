// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	columns  = 120 // of Go; a tab counts as one
	columnsC = 100 // where a tab extends to the next multiple of 8
	fileEnd  = 500 // lines of a file other than a test
	funcEnd  = 60  // lines of a function in such a file
)

func TestLongFiles(t *testing.T) {
	for _, suffix := range []string{".go", ".c", ".h"} {
		for _, file := range files(t, suffix) {
			text := read(t, file)
			generated := strings.Contains(text, "Code generated ") || strings.Contains(file, "_gen.")
			test := strings.HasSuffix(file, "_test.go") || strings.Contains(file, "testdata/")
			if n := strings.Count(text, "\n"); n > fileEnd && !generated && !test {
				t.Errorf("%s has %d lines, want at most %d: split it along an idea", file, n, fileEnd)
			}
		}
	}
}

func TestLongFunctions(t *testing.T) {
	for _, file := range files(t, ".go") {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, read(t, file), parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if n := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1; n > funcEnd {
				t.Errorf("%s: %s has %d lines, want at most %d", file, f.Name.Name, n, funcEnd)
			}
		}
	}
}

// Lines of Go have at most 120 columns, except for text that cannot be broken: raw strings, directives, and tables in
// comments.
func TestLongLines(t *testing.T) {
	for _, file := range files(t, ".go") {
		text := read(t, file)
		if strings.Contains(text, "\n// Code generated ") || strings.Contains(file, "testdata/") {
			continue
		}
		for _, line := range tooLong(text) {
			t.Errorf("%s:%d has more than %d columns", file, line, columns)
		}
	}
}

func TestLongLinesOfC(t *testing.T) {
	for _, suffix := range []string{".c", ".h"} {
		for _, file := range files(t, suffix) {
			if strings.Contains(file, "_gen.") || strings.Contains(file, "testdata/") {
				continue
			}
			for i, line := range strings.Split(read(t, file), "\n") {
				if width(line) > columnsC {
					t.Errorf("%s:%d has more than %d columns: make fmt breaks changed lines", file, i+1, columnsC)
				}
			}
		}
	}
}

// width returns the columns of a line of C.
func width(line string) (n int) {
	for _, r := range line {
		if n++; r == '\t' {
			n = (n + 7) / 8 * 8
		}
	}
	return n
}

func TestWidth(t *testing.T) {
	for line, want := range map[string]int{"": 0, "a": 1, "\t": 8, "a\tb": 9, "1234567\t": 8, "12345678\t": 16, "\té": 9} {
		if got := width(line); got != want {
			t.Errorf("%q: %d columns, want %d", line, got, want)
		}
	}
}

// long returns the numbers of lines that are too long, from 1.
func long(text string) (out []int) {
	for i, line := range strings.Split(text, "\n") {
		if utf8.RuneCountInString(line) > columns {
			out = append(out, i+1)
		}
	}
	return out
}

// tooLong returns the numbers of lines of a Go file that are too long and can be broken.
func tooLong(text string) (out []int) {
	lines := long(text)
	if len(lines) == 0 {
		return nil
	}
	fixed := unbreakable(text)
	for _, line := range lines {
		if !fixed[line] {
			out = append(out, line)
		}
	}
	return out
}

// unbreakable returns the numbers of lines with raw strings, and with comments that are directives or indented.
func unbreakable(text string) map[int]bool {
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, []byte(text), nil, scanner.ScanComments)
	out := map[int]bool{}
	for {
		pos, kind, lit := s.Scan()
		if kind == token.EOF {
			return out
		}
		comment := strings.HasPrefix(lit, "//go:") || strings.HasPrefix(lit, "//\t") || strings.HasPrefix(lit, "//  ")
		if comment || kind == token.STRING && strings.HasPrefix(lit, "`") {
			first := file.Line(pos)
			for line := range 1 + strings.Count(lit, "\n") {
				out[first+line] = true
			}
		}
	}
}

func TestTooLong(t *testing.T) {
	text := strings.Repeat("x", columns)
	for body, want := range map[string]int{
		"var " + text + " = 1":                        1,
		"// " + text:                                  1,
		"//\t" + text:                                 0,
		"//go:generate " + text:                       0,
		"var x = `a\n" + text + "x`":                  0,
		"var x = \"" + text + "\"":                    1,
		"var x = `a\nb` // " + text:                   0,
		"// " + strings.Repeat("é", columns-3):        0,
		"var x = `a`\n// " + text + "\nvar y = `b`\n": 1,
	} {
		if got := tooLong("package p\n\n" + body + "\n"); len(got) != want {
			t.Errorf("%q: lines %v, want %d", body, got, want)
		}
	}
}
