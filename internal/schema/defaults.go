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
	s = Resolve(root, s)
	switch v := v.(type) {
	case map[string]any:
		return fillObject(root, s, v, depth)
	case []any:
		items, _ := s["items"].(map[string]any)
		out := make([]any, len(v))
		for i := range v {
			out[i] = fillDefaults(root, items, v[i], depth+1)
		}
		return out
	}
	return v
}

func fillObject(root, s, object map[string]any, depth int) map[string]any {
	out := make(map[string]any, len(object))
	maps.Copy(out, object)
	properties, _ := s["properties"].(map[string]any)
	for name := range out {
		property, _ := properties[name].(map[string]any)
		out[name] = fillDefaults(root, property, out[name], depth+1)
	}
	for name, sub := range properties {
		property, _ := sub.(map[string]any)
		if _, present := out[name]; present {
			continue
		}
		if value, ok := Resolve(root, property)["default"]; ok {
			out[name] = fillDefaults(root, property, value, depth+1)
		}
	}
	return out
}

// Resolve follows a reference within the schema root (#/$defs/name); keywords next to it take precedence.
func Resolve(root, s map[string]any) map[string]any {
	ref, _ := s["$ref"].(string)
	name, ok := strings.CutPrefix(ref, "#/$defs/")
	if !ok {
		return s
	}
	defs, _ := root["$defs"].(map[string]any)
	target, _ := defs[name].(map[string]any)
	if len(s) == 1 { // the reference alone
		return target
	}
	merged := make(map[string]any, len(target)+len(s))
	maps.Copy(merged, target)
	maps.Copy(merged, s)
	delete(merged, "$ref")
	return merged
}
