// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/json"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
)

// newRegistry returns the schemas of all possible bodies.
func newRegistry() huma.Registry {
	registry := huma.NewMapRegistry("#/components/schemas/", schemaName)
	names := resource.KindNames()
	withKind := func(t reflect.Type) {
		schema := registry.Schema(t, true, "")
		kind := registry.SchemaFromRef(schema.Ref).Properties["kind"]
		for _, name := range names {
			kind.Enum = append(kind.Enum, name)
		}
	}
	for _, kind := range resource.Kinds() {
		withKind(kind.Type())
	}
	withKind(reflect.TypeFor[resource.Ref]())
	return registry
}

// schemaName names the schema of a kind's Go type after the kind.
func schemaName(t reflect.Type, hint string) string {
	for _, kind := range resource.Kinds() {
		if kind.Type() == t {
			return kind.Names().Kind
		}
	}
	return huma.DefaultSchemaNamer(t, hint)
}

// Schema returns the JSON Schema of a file with one resource or a list. Definitions are below $defs.
func Schema() (map[string]any, error) {
	registry := newRegistry()
	var refs []any
	for _, name := range resource.KindNames() {
		refs = append(refs, map[string]any{"if": kindIs(name), "then": map[string]any{"$ref": "#/$defs/" + name}})
	}
	text, err := json.Marshal(registry.Map())
	if err != nil {
		return nil, err
	}
	var defs map[string]any
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(text), "#/components/schemas/", "#/$defs/")),
		&defs); err != nil {
		return nil, err
	}
	defs["Resource"] = map[string]any{"type": "object", "required": []any{"apiVersion", "kind", "metadata", "spec"},
		"properties": map[string]any{"kind": map[string]any{"enum": resource.KindNames()}}, "allOf": refs}
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
