// SPDX-License-Identifier: Apache-2.0

package repository

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const module = "github.com/kerb-edge/kerb"

// importRule is a rule of depguard: the longest prefix in Allow and Deny decides.
type importRule struct {
	Files []string
	Allow []string
	Deny  []struct {
		Package string `yaml:"pkg"`
		Reason  string `yaml:"desc"`
	}
}

func importRules(t *testing.T) map[string]importRule {
	t.Helper()
	var config struct {
		Linters struct {
			Settings struct {
				Depguard struct {
					Rules map[string]importRule
				}
			}
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, ".golangci.yml")), &config); err != nil {
		t.Fatal(err)
	}
	rules := config.Linters.Settings.Depguard.Rules
	if len(rules) == 0 {
		t.Fatal("no rules in .golangci.yml")
	}
	return rules
}

// covers reports whether the rule is for a file. It supports the patterns in .golangci.yml: ${config-path}/DIR/**,
// !${config-path}/DIR/** and !$test.
func (r importRule) covers(t *testing.T, file string) bool {
	t.Helper()
	covered := false
	for _, pattern := range r.Files {
		positive, excludes := strings.CutPrefix(pattern, "!")
		dir, ok := strings.CutPrefix(positive, "${config-path}/")
		switch {
		case pattern == "!$test":
			covered = covered && !strings.HasSuffix(file, "_test.go")
		case ok && excludes && strings.HasSuffix(dir, "/**"):
			covered = covered && !strings.HasPrefix(file, strings.TrimSuffix(dir, "**"))
		case ok && strings.HasSuffix(dir, "/**"):
			covered = covered || strings.HasPrefix(file, strings.TrimSuffix(dir, "**"))
		default:
			t.Fatalf("%s: give ${config-path}/DIR/**, the same after !, and !$test", pattern)
		}
	}
	return covered
}

// refuses returns why a package must not be imported, or "" if it may be.
func (r importRule) refuses(path string) string {
	length, reason := -1, ""
	for _, d := range r.Deny {
		if strings.HasPrefix(path, d.Package) && len(d.Package) > length {
			length, reason = len(d.Package), d.Reason
		}
	}
	for _, a := range r.Allow {
		if strings.HasPrefix(path, a) && len(a) > length {
			return ""
		}
	}
	return reason
}

// Packages import what .golangci.yml allows, in the order standard library, third party, own.
func TestImports(t *testing.T) {
	rules := importRules(t)
	used := map[string]bool{}
	for _, file := range files(t, ".go") {
		if strings.Contains(file, "testdata") || strings.Contains(file, "templates") {
			continue
		}
		paths := imports(t, file)
		for name, rule := range rules {
			if !rule.covers(t, file) {
				continue
			}
			used[name] = true
			for _, path := range paths {
				if reason := rule.refuses(path); reason != "" {
					t.Errorf("%s imports %s: %s", file, path, reason)
				}
			}
		}
	}
	for name := range rules {
		if !used[name] {
			t.Errorf("rule %s covers no file", name)
		}
	}
}

func TestImportRules(t *testing.T) {
	rule := importRules(t)["sdk"]
	if rule.refuses(module+"/internal/agent") == "" || rule.refuses(module+"/api/v1alpha1") != "" ||
		rule.refuses("fmt") != "" {
		t.Error("sdk may import api, the standard library, and nothing else of Kerb")
	}
	product := importRules(t)["product"]
	if product.covers(t, "internal/lab/node/node.go") || !product.covers(t, "internal/cli/cli.go") ||
		product.refuses(module+"/bench") == "" {
		t.Error("the product has no benchmarks, and the laboratory is not of it")
	}
	if product.refuses(module+"/modules/counter") == "" || product.refuses(module+"/modules") != "" {
		t.Error("the product imports the list of modules, and none of them")
	}
	if rule.covers(t, "sdk/wire_test.go") || !rule.covers(t, "sdk/wire.go") || rule.covers(t, "modules/sdk/wire.go") {
		t.Error("the rule is for sdk without its tests")
	}
}

// imports returns the imports of a file, and checks the order of its groups.
func imports(t *testing.T, file string) (out []string) {
	t.Helper()
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, filepath.Join(root, file), nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var order []int
	line := 0
	for _, spec := range parsed.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		out = append(out, path)
		at, group := set.Position(spec.Pos()).Line, groupOf(path)
		if len(order) > 0 && at == line+1 && order[len(order)-1] != group {
			t.Errorf("%s:%d: an empty line separates the standard library, third party and own packages (make fmt)", file, at)
		}
		order, line = append(order, group), at
	}
	if !slices.IsSorted(order) {
		t.Errorf("%s: imports are standard library, third party, own, in this order (make fmt)", file)
	}
	return out
}

func groupOf(path string) int {
	first, _, _ := strings.Cut(path, "/")
	switch {
	case path == module || strings.HasPrefix(path, module+"/"):
		return 2
	case strings.Contains(first, "."):
		return 1
	}
	return 0
}
