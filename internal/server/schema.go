// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"reflect"
	"strings"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// Schema returns the JSON Schema of a file with resources: one, or a list. Definitions are below $defs.
func Schema() (map[string]any, error) {
	registry := newRegistry()
	var refs []any
	for _, t := range []reflect.Type{reflect.TypeFor[v1alpha1.Module](), reflect.TypeFor[v1alpha1.Service](),
		reflect.TypeFor[v1alpha1.VirtualService](), reflect.TypeFor[v1alpha1.Model]()} {
		refs = append(refs, map[string]any{"if": kindIs(t.Name()), "then": map[string]any{"$ref": "#/$defs/" + t.Name()}})
	}
	text, err := json.Marshal(registry.Map())
	if err != nil {
		return nil, err
	}
	var defs map[string]any
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(text), "#/components/schemas/", "#/$defs/")), &defs); err != nil {
		return nil, err
	}
	defs["Resource"] = map[string]any{"type": "object", "required": []any{"apiVersion", "kind", "metadata", "spec"},
		"properties": map[string]any{"kind": map[string]any{"enum": []any{"Module", "Service", "VirtualService", "Model"}}}, "allOf": refs}
	one := map[string]any{"$ref": "#/$defs/Resource"}
	return map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"title":   "Resources of Kerb (" + v1alpha1.APIVersion + ")",
		"if":      map[string]any{"type": "array"},
		"then":    map[string]any{"items": one},
		"else":    one,
		"$defs":   defs,
	}, nil
}

func kindIs(kind string) map[string]any {
	return map[string]any{"properties": map[string]any{"kind": map[string]any{"const": kind}}, "required": []any{"kind"}}
}
