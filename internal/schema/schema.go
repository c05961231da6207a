// SPDX-License-Identifier: Apache-2.0

// Package schema checks values against JSON Schemas (draft 2020-12) and reports every mistake in words that an operator
// understands: the path of the field, what is wrong, and what would be right.
package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/kerb-edge/kerb/internal/parsed"
)

// Schema is a compiled JSON Schema. Objects with properties are closed: a property that the schema does not name is an
// error unless the schema says additionalProperties. It is safe for concurrent use.
type Schema struct {
	compiled *jsonschema.Schema
	root     *parsed.Value[map[string]any] // for what mistakes are explained with
	patterns map[string]string             // what they want, in words
}

const schemaURL = "kerb:///schema.json"

// MustCompile compiles the text of a schema that is part of the program.
func MustCompile(text []byte) *Schema {
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		panic(err)
	}
	s, err := Compile(tree, true)
	if err != nil {
		panic(err)
	}
	return s
}

// Compile compiles a schema, decoded from JSON, of an object. Of an empty schema only the empty object is valid. As in
// JSON Schema itself, formats are checked only if that is asked for; ip is one of them, the format of a netip.Addr.
func Compile(tree map[string]any, formats bool) (*Schema, error) {
	plain, err := Plain(tree)
	if err != nil {
		return nil, err
	}
	root, _ := plain.(map[string]any)
	if root == nil {
		root = map[string]any{}
	}
	if kind, ok := root["type"]; ok && kind != "object" {
		return nil, errors.New(`type must be "object": a config is a set of named properties`)
	}
	root["type"] = "object"
	if _, ok := root["properties"]; !ok {
		root["properties"] = map[string]any{}
	}
	closeObjects(root)
	c := jsonschema.NewCompiler()
	c.UseLoader(jsonschema.SchemeURLLoader{}) // no files, no network
	if formats {
		c.AssertFormat()
	}
	c.RegisterFormat(&jsonschema.Format{Name: "ip", Validate: checkIP})
	if err := c.AddResource(schemaURL, root); err != nil {
		return nil, err
	}
	compiled, err := c.Compile(schemaURL)
	if err != nil {
		return nil, fmt.Errorf("not a valid JSON Schema: %w", err)
	}
	text, err := json.Marshal(root)
	if err != nil {
		return nil, err
	}
	s := &Schema{compiled, parsed.New(func() (tree map[string]any, err error) {
		return tree, json.Unmarshal(text, &tree)
	}), map[string]string{}}
	s.describePatterns(root)
	return s, nil
}

// RemoveNull removes optional properties that are null from the objects within a value: they count as absent.
func (s *Schema) RemoveNull(value any) { removeNull(s.compiled, value) }

// removeNull removes optional properties that are null from value, in place: clients that write null for "not set" are
// accepted. Required properties keep their null and fail validation.
func removeNull(at *jsonschema.Schema, value any) {
	for at != nil && at.Ref != nil {
		at = at.Ref
	}
	if at == nil {
		return
	}
	switch value := value.(type) {
	case []any:
		for _, item := range value {
			removeNull(at.Items2020, item)
		}
	case map[string]any:
		values, _ := at.AdditionalProperties.(*jsonschema.Schema)
		for name, field := range value {
			property := at.Properties[name]
			if field == nil && property != nil && !slices.Contains(at.Required, name) {
				delete(value, name)
			} else if property != nil {
				removeNull(property, field)
			} else {
				removeNull(values, field)
			}
		}
	}
}

// describePatterns collects patternDescription, Kerb's own keyword: what a pattern wants, in words.
func (s *Schema) describePatterns(v any) {
	switch v := v.(type) {
	case []any:
		for _, sub := range v {
			s.describePatterns(sub)
		}
	case map[string]any:
		pattern, _ := v["pattern"].(string)
		if words, ok := v["patternDescription"].(string); ok && pattern != "" {
			s.patterns[pattern] = words
		}
		for _, sub := range v {
			s.describePatterns(sub)
		}
	}
}

// Plain returns a value in the form that encoding/json would decode into an any, with exact numbers.
func Plain(v any) (any, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return jsonschema.UnmarshalJSON(bytes.NewReader(data))
}

// IsPlain reports whether a value is what encoding/json decodes into an any.
func IsPlain(v any) bool {
	switch v := v.(type) {
	case nil, bool, string, float64, json.Number:
		return true
	case []any:
		return !slices.ContainsFunc(v, func(sub any) bool { return !IsPlain(sub) })
	case map[string]any:
		for _, sub := range v {
			if !IsPlain(sub) {
				return false
			}
		}
		return true
	}
	return false
}

// closeObjects refuses unnamed properties where the author left that open.
func closeObjects(s map[string]any) {
	if _, ok := s["properties"]; ok {
		closeObject(s)
	}
	for _, key := range []string{"properties", "patternProperties", "$defs"} {
		group, _ := s[key].(map[string]any)
		for _, sub := range group {
			closeSub(sub)
		}
	}
	for _, key := range []string{"items", "additionalProperties"} {
		closeSub(s[key])
	}
}

func closeSub(v any) {
	if s, ok := v.(map[string]any); ok {
		closeObjects(s)
	}
}

// closeObject makes the schema refuse unknown fields unless it says how to treat them. With subschemas
// unevaluatedProperties is needed, because additionalProperties does not see properties of subschemas.
func closeObject(s map[string]any) {
	for _, key := range []string{"additionalProperties", "unevaluatedProperties"} {
		if _, ok := s[key]; ok {
			return
		}
	}
	for _, key := range []string{"allOf", "anyOf", "oneOf", "if", "$ref"} {
		if _, ok := s[key]; ok {
			s["unevaluatedProperties"] = false
			return
		}
	}
	s["additionalProperties"] = false
}

// checkIP checks a value of the format ip, which is that of a netip.Addr in Go.
func checkIP(v any) error {
	text, ok := v.(string)
	if !ok {
		return nil // of another type
	}
	_, err := netip.ParseAddr(text)
	return err
}
