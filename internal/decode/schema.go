// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/kerb-edge/kerb/internal/schema"
)

var schemas sync.Map // *schema.Schema by reflect.Type

// schemaOf returns the schema that the OpenAPI document has for a Go type.
func schemaOf(t reflect.Type) *schema.Schema {
	if known, ok := schemas.Load(t); ok {
		return known.(*schema.Schema)
	}
	registry := huma.NewMapRegistry("#/$defs/", huma.DefaultSchemaNamer)
	text, err := json.Marshal(registry.Schema(t, false, ""))
	tree := map[string]any{}
	if err == nil {
		err = json.Unmarshal(text, &tree)
	}
	tree["$defs"] = registry.Map()
	compiled, wrong := schema.Compile(tree, true)
	if err != nil || wrong != nil {
		panic(fmt.Sprintf("schema of %s: %v, %v", t, err, wrong)) // of the program's own types
	}
	made, _ := schemas.LoadOrStore(t, compiled)
	return made.(*schema.Schema)
}

// Validate checks a value, as decoded from JSON, against the schema of t. It joins the mistakes, sorted by field.
// Optional fields without a value, as in "labels:" with nothing below, are absent: they are removed.
func Validate(t reflect.Type, value any) error {
	s := schemaOf(t)
	s.RemoveNull(value)
	return s.Validate(value)
}
