// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"maps"
	"strings"
)

// maxDefaultDepth ends defaults that contain themselves by reference.
const maxDefaultDepth = 32

// FillDefaults returns a deep copy of object in which absent properties have the defaults of the schema root.
func FillDefaults(root, object map[string]any) map[string]any {
	return fillObject(root, Resolve(root, root), object, 0)
}

// fillDefaults returns a deep copy of v with defaults put in where a property of an object is absent. References are
// followed within the schema (#/$defs/name).
func fillDefaults(root, s map[string]any, v any, depth int) any {
	if depth > maxDefaultDepth {
		return v
	}
	switch v := v.(type) {
	case map[string]any:
		return fillObject(root, Resolve(root, s), v, depth)
	case []any:
		items, _ := Resolve(root, s)["items"].(map[string]any)
		items = Resolve(root, items) // once for all of them
		absent := defaultsOf(root, items)
		out := make([]any, len(v))
		for i := range v {
			if object, ok := v[i].(map[string]any); ok && depth < maxDefaultDepth {
				out[i] = fillAbsent(root, items, object, absent, depth+1)
			} else {
				out[i] = fillDefaults(root, items, v[i], depth+1)
			}
		}
		return out
	}
	return v
}

// fillObject returns a copy of object with the defaults of its properties filled in at every level. Values that are
// present, null included, are kept.
func fillObject(root, s, object map[string]any, depth int) map[string]any {
	return fillAbsent(root, s, object, defaultsOf(root, s), depth)
}

// fillAbsent is fillObject with the defaults of properties that are absent.
func fillAbsent(root, s, object map[string]any, absent []property, depth int) map[string]any {
	out := make(map[string]any, len(object))
	properties, _ := s["properties"].(map[string]any)
	for name, value := range object {
		schema, _ := properties[name].(map[string]any)
		out[name] = fillDefaults(root, schema, value, depth+1)
	}
	for _, p := range absent {
		if _, present := out[p.name]; !present {
			out[p.name] = fillDefaults(root, p.schema, p.value, depth+1)
		}
	}
	return out
}

// property is one with a default.
type property struct {
	name   string
	schema map[string]any
	value  any
}

func defaultsOf(root, s map[string]any) (out []property) {
	properties, _ := s["properties"].(map[string]any)
	for name, sub := range properties {
		schema, _ := sub.(map[string]any)
		if value, ok := defaultOf(root, schema); ok {
			out = append(out, property{name, schema, value})
		}
	}
	return out
}

// defaultOf is Resolve(root, s)["default"].
func defaultOf(root, s map[string]any) (value any, ok bool) {
	if value, ok = s["default"]; !ok {
		value, ok = target(root, s)["default"]
	}
	return value, ok
}

// Resolve follows a reference within the schema root (#/$defs/name); keywords next to it take precedence.
func Resolve(root, s map[string]any) map[string]any {
	base := target(root, s)
	if base == nil {
		return s
	}
	if len(s) == 1 { // the reference alone
		return base
	}
	merged := make(map[string]any, len(base)+len(s))
	maps.Copy(merged, base)
	maps.Copy(merged, s)
	delete(merged, "$ref")
	return merged
}

// target is what the reference of s refers to, nil without one.
func target(root, s map[string]any) map[string]any {
	ref, _ := s["$ref"].(string)
	name, ok := strings.CutPrefix(ref, "#/$defs/")
	if !ok {
		return nil
	}
	defs, _ := root["$defs"].(map[string]any)
	out, _ := defs[name].(map[string]any)
	return out
}
