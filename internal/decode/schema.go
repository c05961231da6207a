// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/validation"

	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/nearest"
)

// schema is that of a Go type, with those it refers to. Validating does not change it.
type schema struct {
	registry huma.Registry
	root     *huma.Schema
}

var (
	schemas      sync.Map                                                     // *schema by reflect.Type
	strictCasing = sync.OnceFunc(func() { huma.ValidateStrictCasing = true }) // huma's own default takes SPEC for spec
)

func schemaOf(t reflect.Type) *schema {
	strictCasing()
	if known, ok := schemas.Load(t); ok {
		return known.(*schema)
	}
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	made, _ := schemas.LoadOrStore(t, &schema{registry, registry.Schema(t, true, "")})
	return made.(*schema)
}

// Validate checks a value, as decoded from JSON, against the schema of t. It joins the mistakes, sorted by field.
func Validate(t reflect.Type, value any) error {
	s := schemaOf(t)
	result := &huma.ValidateResult{}
	huma.Validate(s.registry, s.root, huma.NewPathBuffer(nil, 0), huma.ModeWriteToServer, value, result)
	var all []*fault.Invalid
	meant := map[string]bool{} // fields whose names are misspelt: that they are missing is the same mistake
	for _, err := range result.Errors {
		var detail *huma.ErrorDetail
		if !errors.As(err, &detail) {
			continue
		}
		reason := detail.Message
		if reason == validation.MsgUnexpectedProperty {
			known := s.knownFields(detail.Location)
			parent, name := splitField(detail.Location)
			hint := nearest.To(name, known)
			meant[parent+fmt.Sprintf(validation.MsgExpectedRequiredProperty, hint)] = true
			reason = "unknown field; known are " + strings.Join(known, ", ") + nearest.Hint(name, known)
		}
		all = append(all, &fault.Invalid{Field: detail.Location, Reason: reason})
	}
	all = slices.DeleteFunc(all, func(e *fault.Invalid) bool { return meant[e.Field+e.Reason] })
	slices.SortStableFunc(all, func(a, b *fault.Invalid) int { return cmp.Compare(a.Field, b.Field) })
	return fault.Join(all)
}

// splitField separates the last name of a path from what is above it.
func splitField(field string) (parent, name string) {
	if i := strings.LastIndex(field, "."); i >= 0 {
		return field[:i], field[i+1:]
	}
	return "", field
}

// knownFields lists the fields alongside the one at location.
func (s *schema) knownFields(location string) []string {
	at := s.root
	steps := strings.Split(location, ".")
	for _, step := range steps[:len(steps)-1] {
		name, _, _ := strings.Cut(step, "[")
		at = s.resolve(at)
		if next := at.Properties[name]; next != nil {
			at = s.resolve(next)
		} else if values, ok := at.AdditionalProperties.(*huma.Schema); ok {
			at = s.resolve(values)
		}
		if at.Items != nil {
			at = at.Items
		}
	}
	var names []string
	for name, property := range s.resolve(at).Properties {
		if !property.ReadOnly {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (s *schema) resolve(at *huma.Schema) *huma.Schema {
	for at.Ref != "" {
		at = s.registry.SchemaFromRef(at.Ref)
	}
	return at
}
