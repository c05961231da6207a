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
		out := make([]any, len(v))
		for i := range v {
			out[i] = fillDefaults(root, items, v[i], depth+1)
		}
		return out
	}
	return v
}

// fillObject returns a copy of object with the defaults of its properties filled in at every level. Values that are
// present, null included, are kept.
func fillObject(root, s, object map[string]any, depth int) map[string]any {
	out := make(map[string]any, len(object))
	properties, _ := s["properties"].(map[string]any)
	for name, value := range object {
		property, _ := properties[name].(map[string]any)
		out[name] = fillDefaults(root, property, value, depth+1)
	}
	for name, sub := range properties {
		property, _ := sub.(map[string]any)
		if _, present := out[name]; present {
			continue
		}
		if value, ok := defaultOf(root, property); ok {
			out[name] = fillDefaults(root, property, value, depth+1)
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
