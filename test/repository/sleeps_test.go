// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// bareSleeps is how many calls of time.Sleep without a reason the tests of each directory still have. The numbers only
// go down: wait for a condition instead, with a deadline (wait.Until), or say in a comment why time itself has to pass.
var bareSleeps = map[string]int{
	"kmod": 4, "modules/accelerator": 11, "modules/responder/apps/coap": 1, "test/accelerator": 7,
}

// A sleep needs no comment as the pause of a loop that waits for a condition, and in a synctest bubble, where no time
// passes.
func TestSleepsHaveReasons(t *testing.T) {
	found, where := map[string]int{}, map[string][]string{}
	for _, file := range files(t, "_test.go") {
		dir := filepath.Dir(file)
		for _, position := range sleepsWithoutReason(t, file, read(t, file)) {
			found[dir]++
			where[dir] = append(where[dir], position.String())
		}
	}
	for dir, n := range found {
		if n > bareSleeps[dir] {
			t.Errorf("%s: %d sleeps without a reason, at most %d: %s", dir, n, bareSleeps[dir], strings.Join(where[dir], ", "))
		}
	}
	for dir, limit := range bareSleeps {
		if found[dir] < limit {
			t.Errorf("%s: %d sleeps without a reason; lower its limit of %d", dir, found[dir], limit)
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
