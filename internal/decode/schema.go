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

// schemaOf compiles the schema that the OpenAPI document has for a Go type.
func schemaOf(t reflect.Type) *schema.Schema {
	if known, ok := schemas.Load(t); ok {
		return known.(*schema.Schema)
	}
	registry := huma.NewMapRegistry("#/$defs/", huma.DefaultSchemaNamer)
	root := registry.Schema(t, false, "")
	text, err := json.Marshal(root)
	tree := map[string]any{}
	if err == nil {
		err = json.Unmarshal(text, &tree)
	}
	tree["$defs"] = registry.Map()
	compiled, wrong := schema.Compile(tree)
	if err != nil || wrong != nil {
		panic(fmt.Sprintf("schema of %s: %v, %v", t, err, wrong)) // of the program's own types
	}
	made, _ := schemas.LoadOrStore(t, compiled)
	return made.(*schema.Schema)
}

// Validate checks a value, as decoded from JSON, against the schema of t. It joins the mistakes, sorted by field.
func Validate(t reflect.Type, value any) error { return schemaOf(t).Validate(value) }
