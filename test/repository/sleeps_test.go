// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
)

// A test waits for a condition, with a deadline (wait.Until), or gives the reason for a delay in a comment. A sleep
// needs no comment as the pause of a polling loop, and in a synctest bubble, where time is virtual.
func TestSleepsHaveReasons(t *testing.T) {
	for _, file := range files(t, "_test.go") {
		for _, position := range sleepsWithoutReason(t, file, read(t, file)) {
			t.Errorf("%s: a sleep without a reason", position)
		}
	}
}

func sleepsWithoutReason(t *testing.T, name, text string) (bare []token.Position) {
	t.Helper()
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, name, text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var commented []int
	for _, group := range file.Comments {
		commented = append(commented, fset.Position(group.Pos()).Line, fset.Position(group.End()).Line+1)
	}
	pauses := map[ast.Node]bool{}
	for _, decl := range file.Decls {
		if function, ok := decl.(*ast.FuncDecl); ok && calls(function, "synctest", "Test") {
			continue
		}
		ast.Inspect(decl, func(n ast.Node) bool {
			if loop, ok := n.(*ast.ForStmt); ok && loop.Post != nil {
				pauses[loop.Post] = true
			}
			statement, ok := n.(*ast.ExprStmt)
			if ok && !pauses[n] && isCall(statement.X, "time", "Sleep") {
				if position := fset.Position(n.Pos()); !slices.Contains(commented, position.Line) {
					bare = append(bare, position)
				}
			}
			return true
		})
	}
	return bare
}

func calls(in ast.Node, pkg, name string) (found bool) {
	ast.Inspect(in, func(n ast.Node) bool {
		e, ok := n.(ast.Expr)
		found = found || ok && isCall(e, pkg, name)
		return !found
	})
	return found
}

func isCall(e ast.Expr, pkg, name string) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	function, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	x, ok := function.X.(*ast.Ident)
	return ok && x.Name == pkg && function.Sel.Name == name
}

func TestSleepsWithoutReason(t *testing.T) {
	for body, want := range map[string]int{
		"time.Sleep(1)":                                        1,
		"func() { time.Sleep(1) }()":                           1,
		"time.Sleep(1) // the kernel's own timer":              0,
		"// The timer has to run.\n\ttime.Sleep(1)":            0,
		"// Far above.\n\n\ttime.Sleep(1)":                     1,
		"for !done() { time.Sleep(1) }":                        1,
		"for ; !done(); time.Sleep(1) {\n\t}":                  0,
		"for ; !done(); time.Sleep(1) {\n\t\ttime.Sleep(2)\n}": 1,
		"synctest.Test(t, func() { time.Sleep(1) })":           0,
	} {
		text := "package p\n\nfunc f() {\n\t" + body + "\n}\n"
		if got := sleepsWithoutReason(t, "x_test.go", text); len(got) != want {
			t.Errorf("%q: %v, want %d", body, got, want)
		}
	}
}
