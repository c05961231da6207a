// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestConditionsAreDocumented compares the table of conditions in docs/operating.md with the types and reasons in the
// source.
func TestConditionsAreDocumented(t *testing.T) {
	inCode := map[string]bool{}
	for _, file := range files(t, ".go") {
		product := strings.HasPrefix(file, "internal/") || strings.HasPrefix(file, "modules/")
		if product && !strings.HasSuffix(file, "_test.go") && !strings.Contains(file, "/servertest/") {
			addConditions(t, file, inCode)
		}
	}
	_, table, _ := strings.Cut(read(t, "docs/operating.md"), "\n## Conditions\n")
	table, _, _ = strings.Cut(table, "\n## ")
	inTable := map[string]bool{}
	for _, word := range regexp.MustCompile("`([A-Z][A-Za-z]*)`").FindAllStringSubmatch(table, -1) {
		inTable[word[1]] = true
	}
	for _, word := range slices.Sorted(maps.Keys(inCode)) {
		if !inTable[word] {
			t.Errorf("the table of conditions in docs/operating.md lacks `%s`", word)
		}
	}
	for _, word := range slices.Sorted(maps.Keys(inTable)) {
		if !inCode[word] {
			t.Errorf("docs/operating.md has the condition type or reason `%s`, which is not in the source", word)
		}
	}
}

// camelCase matches types and reasons, but not sentences in other fields with these names.
var camelCase = regexp.MustCompile(`^[A-Z][A-Za-z]*[a-z]$`)

// addConditions adds the words in fields Type and Reason of literals, in assignments to a field Reason, in constants
// whose names begin with Reason, and in calls of conditionOf of internal/control.
func addConditions(t *testing.T, file string, words map[string]bool) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, read(t, file), 0)
	if err != nil {
		t.Fatal(err)
	}
	add := func(values ...ast.Expr) {
		for _, v := range values {
			if l, ok := v.(*ast.BasicLit); ok && l.Kind == token.STRING && camelCase.MatchString(strings.Trim(l.Value, `"`)) {
				words[strings.Trim(l.Value, `"`)] = true
			}
		}
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			if key, ok := n.Key.(*ast.Ident); ok && (key.Name == "Type" || strings.EqualFold(key.Name, "Reason")) {
				add(n.Value)
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				if field, ok := left.(*ast.SelectorExpr); ok && field.Sel.Name == "Reason" && len(n.Rhs) == len(n.Lhs) {
					add(n.Rhs[i])
				}
			}
		case *ast.ValueSpec:
			if strings.HasPrefix(n.Names[0].Name, "Reason") {
				add(n.Values...)
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "conditionOf" {
				add(n.Args...)
			}
		}
		return true
	})
}
