// SPDX-License-Identifier: Apache-2.0

package modules_test

import (
	"io/fs"
	"slices"
	"testing"

	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/modules"
	"github.com/kerb-edge/kerb/sdk/model"
)

// Every directory with a manifest is in the binary, compiled, keeps the contract and its own budget, and has the
// control plane that it asks for.
func TestBuiltinsAreWhole(t *testing.T) {
	manifests, err := fs.Glob(modules.Packages(), "*/"+pkgs.ManifestName)
	if err != nil || len(manifests) == 0 {
		t.Fatalf("no manifests: %v", err)
	}
	catalog := pkgs.NewCatalog(modules.Packages(), modules.Controls())
	if err := catalog.Err(); err != nil {
		t.Fatal(err)
	}
	if have := len(catalog.Builtin()); have != len(manifests) {
		t.Errorf("%d packages for %d manifests", have, len(manifests))
	}
	for _, p := range catalog.Builtin() {
		if _, err := p.Specs(); err != nil {
			t.Error(err)
		}
		if err := p.CheckMemory("", nil); err != nil {
			t.Error(err)
		}
	}
}

// Errors describe valid values in words, not as regular expressions.
func TestPatternsAreDescribed(t *testing.T) {
	for _, p := range pkgs.NewCatalog(modules.Packages(), modules.Controls()).Builtin() {
		eachPattern(p.ConfigSchema, func(pattern string, schema map[string]any) {
			if words, _ := schema["patternDescription"].(string); words == "" {
				t.Errorf("package %s: the pattern %s has no patternDescription", p.Name, pattern)
			}
		})
	}
}

func eachPattern(v any, do func(string, map[string]any)) {
	switch v := v.(type) {
	case []any:
		for _, sub := range v {
			eachPattern(sub, do)
		}
	case map[string]any:
		if pattern, ok := v["pattern"].(string); ok {
			do(pattern, v)
		}
		for _, sub := range v {
			eachPattern(sub, do)
		}
	}
}

func TestEveryControlPlaneHasItsPackage(t *testing.T) {
	catalog := pkgs.NewCatalog(modules.Packages(), modules.Controls())
	for name := range modules.Controls() {
		if p, err := catalog.Get(name); err != nil || p.ControlPlane == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Packages that ask for models are those that the agent asks what they think of one.
func TestModelUsers(t *testing.T) {
	for _, p := range pkgs.NewCatalog(modules.Packages(), modules.Controls()).Builtin() {
		_, uses := modules.Controls()[p.Name].(model.User)
		if asks := slices.Contains(p.Capabilities, "models"); asks != uses {
			t.Errorf("%s: capability models in its manifest: %v; its control plane checks models: %v", p.Name, asks, uses)
		}
	}
}
