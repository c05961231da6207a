// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/kerb-edge/kerb/internal/seed"
)

// configSchemas are those of the built-in packages, by package.
func configSchemas(t testing.TB) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob("../../modules/*/kerb.yaml")
	if err != nil || len(files) < 8 {
		t.Fatal(files, err)
	}
	out := map[string]map[string]any{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var manifest struct {
			ConfigSchema map[string]any `yaml:"configSchema"`
		}
		if err := yaml.Unmarshal(data, &manifest); err != nil {
			t.Fatal(err)
		}
		var tree map[string]any
		text, err := json.Marshal(manifest.ConfigSchema)
		if err == nil {
			err = json.Unmarshal(text, &tree)
		}
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(filepath.Dir(file))] = tree
	}
	return out
}

// Of what it is sure, the compiled schema says the same, and it is sure of nearly all valid configs.
func TestFitsIsValid(t *testing.T) {
	random := seed.Rand(t)
	for name, tree := range configSchemas(t) {
		s, err := Compile(tree, false)
		if err != nil {
			t.Fatal(err)
		}
		valid, sure := 0, 0
		for range 3000 {
			config := draw(random, tree, tree, 0)
			fit, err := fits(s.compiled, config, 0), s.compiled.Validate(config)
			if fit && err != nil {
				t.Fatalf("%s: %v: %v", name, config, err)
			}
			if err == nil {
				valid++
			}
			if fit {
				sure++
			}
		}
		if t.Logf("%s: sure of %d of %d", name, sure, valid); valid < 50 || sure < valid*9/10 {
			t.Errorf("%s: sure of %d of %d valid configs", name, sure, valid)
		}
	}
}

// draw returns a value that a schema is likely to accept.
func draw(random *rand.Rand, root, s map[string]any, depth int) any {
	if random.IntN(60) == 0 || depth > 8 {
		odd := []any{nil, true, -1.0, 1.5, 1e6, 70000.0, "", "x", "10.0.0.0/8", "5s", []any{}, []any{"x"}, map[string]any{},
			map[string]any{"x": 1.0}}
		return odd[random.IntN(len(odd))]
	}
	s = Resolve(root, s)
	if value, ok := s["default"]; ok && random.IntN(4) == 0 {
		return value
	}
	for _, kind := range []string{"anyOf", "oneOf"} {
		if of, ok := s[kind].([]any); ok {
			return draw(random, root, of[random.IntN(len(of))].(map[string]any), depth)
		}
	}
	if values, ok := s["enum"].([]any); ok {
		return values[random.IntN(len(values))]
	}
	bound := func(name string, otherwise float64) float64 {
		if v, ok := s[name].(float64); ok {
			return v
		}
		return otherwise
	}
	switch s["type"] {
	case "boolean":
		return random.IntN(2) == 0
	case "integer", "number":
		ends := []float64{bound("minimum", 0), bound("maximum", 100), bound("minimum", 0) + 1, bound("maximum", 100) + 1}
		return ends[min(random.IntN(40), 3)%len(ends)]
	case "array":
		items, _ := s["items"].(map[string]any)
		out := make([]any, int(bound("minItems", 0))+random.IntN(3))
		for i := range out {
			out[i] = draw(random, root, items, depth+1)
		}
		return out
	case "string":
		texts := []string{"10/s", "10.0.0.1", "10.0.0.0/8", "5s", "1m", "80-90", "name", "1Mi", "fd00::1"}
		return texts[random.IntN(len(texts))]
	}
	return drawObject(random, root, s, depth)
}

func drawObject(random *rand.Rand, root, s map[string]any, depth int) any {
	out := map[string]any{}
	properties, _ := s["properties"].(map[string]any)
	required, _ := s["required"].([]any)
	for name, sub := range properties {
		if property, ok := sub.(map[string]any); ok && (random.IntN(5) == 0 || slices.Contains(required, any(name))) {
			out[name] = draw(random, root, property, depth+1)
		}
	}
	return out
}

// A new keyword of the library is either examined by fits or one of those that it is not sure of.
func TestFitsKnowsAllKeywords(t *testing.T) {
	const known = 69
	if n := reflect.TypeFor[jsonschema.Schema]().NumField(); n != known {
		t.Errorf("jsonschema.Schema has %d fields, %d are known: see hasRareKeyword", n, known)
	}
}

// A schema that refers to itself ends.
func TestFitsOfItself(t *testing.T) {
	s, err := Compile(map[string]any{"properties": map[string]any{"a": map[string]any{"$ref": "#/$defs/a"}},
		"$defs": map[string]any{"a": map[string]any{"anyOf": []any{map[string]any{"$ref": "#/$defs/a"}}}}}, false)
	if err != nil {
		t.Fatal(err)
	}
	if fits(s.compiled, map[string]any{"a": 1.0}, 0) {
		t.Error("sure of what never ends")
	}
}

// The check of a thousand rules takes no memory.
func TestFitsTakesNoMemory(t *testing.T) {
	s, err := Compile(configSchemas(t)["firewall"], false)
	if err != nil {
		t.Fatal(err)
	}
	rules := make([]any, 1000)
	for i := range rules {
		rules[i] = map[string]any{"action": "deny", "src": fmt.Sprint("10.0.0.", i%256), "dstPort": float64(1 + i),
			"protocol": "tcp", "direction": "both"}
	}
	config := map[string]any{"rules": rules}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := s.Validate(config); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 100<<10 {
		t.Errorf("%d KiB", n>>10)
	}
}
