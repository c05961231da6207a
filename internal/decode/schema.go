// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/kerb-edge/kerb/internal/schema"
)

// typeSchema is the schema that the OpenAPI document has for a Go type.
type typeSchema struct {
	compiled *schema.Schema
	root     *huma.Schema
	registry huma.Registry
}

const definitions = "#/$defs/"

var schemas sync.Map // *typeSchema by reflect.Type

func schemaOf(t reflect.Type) *typeSchema {
	if known, ok := schemas.Load(t); ok {
		return known.(*typeSchema)
	}
	registry := huma.NewMapRegistry(definitions, huma.DefaultSchemaNamer)
	root := registry.Schema(t, false, "")
	text, err := json.Marshal(root)
	tree := map[string]any{}
	if err == nil {
		err = json.Unmarshal(text, &tree)
	}
	tree["$defs"] = registry.Map()
	compiled, wrong := schema.Compile(tree, true)
	if err != nil || wrong != nil {
		panic(fmt.Sprintf("schema of %s: %v, %v", t, err, wrong)) // of the program's own types
	}
	made, _ := schemas.LoadOrStore(t, &typeSchema{compiled, root, registry})
	return made.(*typeSchema)
}

// Validate checks a value, as decoded from JSON, against the schema of t. It joins the mistakes, sorted by field.
// Optional fields without a value, as in "labels:" with nothing below, are absent: they are removed.
func Validate(t reflect.Type, value any) error {
	s := schemaOf(t)
	s.removeEmpty(s.root, value)
	return s.compiled.Validate(value)
}

func (s *typeSchema) removeEmpty(at *huma.Schema, value any) {
	for at != nil && strings.HasPrefix(at.Ref, definitions) {
		at = s.registry.SchemaFromRef(at.Ref)
	}
	if at == nil {
		return
	}
	switch value := value.(type) {
	case []any:
		for _, item := range value {
			s.removeEmpty(at.Items, item)
		}
	case map[string]any:
		values, _ := at.AdditionalProperties.(*huma.Schema)
		for name, field := range value {
			property := at.Properties[name]
			if field == nil && property != nil && !slices.Contains(at.Required, name) {
				delete(value, name)
			} else if property != nil {
				s.removeEmpty(property, field)
			} else {
				s.removeEmpty(values, field)
			}
		}
	}
}
