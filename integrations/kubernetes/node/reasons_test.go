// SPDX-License-Identifier: Apache-2.0

package node

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
)

var camelCase = regexp.MustCompile(`^[A-Z][a-z]+([A-Z][a-z]+)*$`)

// texts calls f for each literal in expressions that is one CamelCase word.
func texts(of []ast.Expr, f func(string)) {
	for _, e := range of {
		if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil && camelCase.MatchString(text) {
				f(text)
			}
		}
	}
}

func parse(t *testing.T, file string) *ast.File {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

// kerb-kube-controller knows all reasons that this package and the agent report of modules: they are constants of
// package api, and in its list.
func TestReasonsAreKnown(t *testing.T) {
	known := func(where, reason string) {
		t.Helper()
		if !slices.Contains(api.NodeReasons, reason) {
			t.Errorf("%s: %s is not in api.NodeReasons", where, reason)
		}
	}
	listed := 0
	ast.Inspect(parse(t, "../api/reasons.go"), func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			texts(spec.Values, func(reason string) { listed++; known("package api", reason) })
		}
		return true
	})
	if listed != len(api.NodeReasons) {
		t.Errorf("%d reasons are constants, and %d in the list", listed, len(api.NodeReasons))
	}

	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	own := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || file == "podevents.go" { // reasons of Events of pods
			continue
		}
		here := func(reason string) { t.Errorf("%s: write api.%s, which is in api.NodeReasons", file, reason) }
		ast.Inspect(parse(t, file), func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ReturnStmt:
				if len(n.Results) > 1 {
					texts(n.Results, here)
				}
			case *ast.ValueSpec:
				texts(n.Values, here)
			case *ast.CallExpr: // fail(m, reason, ...)
				if f, ok := n.Fun.(*ast.Ident); !ok || f.Name != "plural" {
					texts(n.Args, here)
				}
			case *ast.AssignStmt:
				if len(n.Lhs) == 2 { // reason, err = ...
					texts(n.Rhs, here)
				}
			case *ast.CompositeLit:
				if of, ok := n.Type.(*ast.SelectorExpr); !ok || of.Sel.Name != "ModuleReport" {
					return true
				}
				for _, e := range n.Elts {
					if field, ok := e.(*ast.KeyValueExpr); ok {
						own++
						texts([]ast.Expr{field.Value}, here)
					}
				}
			}
			return true
		})
	}
	if own == 0 {
		t.Error("no reports were found")
	}

	for in, c := range map[string]struct {
		function string
		not      []string // not reported
	}{
		"module.go":     {"moduleReady", []string{"NoAttachPoint", "True", "Running"}},
		"conditions.go": {"placedCondition", []string{"PartiallyAttached", "False"}},
	} {
		agents := 0
		ast.Inspect(parse(t, "../../../internal/status/"+in), func(n ast.Node) bool {
			f, ok := n.(*ast.FuncDecl)
			if ok && f.Name.Name != c.function {
				return false
			}
			if of, ok := n.(*ast.AssignStmt); ok && ofCondition(of) {
				texts(of.Rhs, func(reason string) {
					if !slices.Contains(c.not, reason) {
						agents++
						known("the agent's "+c.function, reason)
					}
				})
			}
			return true
		})
		if agents == 0 {
			t.Errorf("no reasons of %s were found", c.function)
		}
	}
}

// ofCondition reports whether a statement sets the reason of a condition.
func ofCondition(s *ast.AssignStmt) bool {
	return slices.ContainsFunc(s.Lhs, func(e ast.Expr) bool {
		field, ok := e.(*ast.SelectorExpr)
		return ok && field.Sel.Name == "Reason"
	})
}

// A module that does not run, or that runs on the sockets of no pod, is reported. A module that selects no pod is not.
func TestIsFailure(t *testing.T) {
	for _, c := range []struct {
		of   v1.Condition
		want bool
	}{
		{v1.Condition{Type: "Ready", Status: "True", Reason: "Running"}, false},
		{v1.Condition{Type: "Ready", Status: "False", Reason: "NoAttachPoint"}, false},
		{v1.Condition{Type: "Ready", Status: "False", Reason: "ModuleFailed"}, true},
		{v1.Condition{Type: "Placed", Status: "True", Reason: "AllAttached"}, false},
		{v1.Condition{Type: "Placed", Status: "False", Reason: "PartiallyAttached"}, false},
		{v1.Condition{Type: "Placed", Status: "False", Reason: "OwnCgroupsOnly"}, true},
	} {
		if got := isFailure(c.of); got != c.want {
			t.Errorf("%+v: %t", c.of, got)
		}
	}
}
