// SPDX-License-Identifier: Apache-2.0

package pkgs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/kerb-edge/kerb/internal/nearest"
	"github.com/kerb-edge/kerb/sdk"
)

// schema is a compiled JSON Schema (draft 2020-12). Objects with properties are closed: one that is not named is refused
// unless the schema says additionalProperties.
type schema struct {
	compiled *jsonschema.Schema
	root     map[string]any
	patterns map[string]string // what they want, in words
}

const schemaURL = "kerb:///schema.json"

func mustCompile(text []byte) *schema {
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		panic(err)
	}
	s, err := compileSchema(tree)
	if err != nil {
		panic(err)
	}
	return s
}

// compileSchema makes a schema from its tree; nil allows an empty object only.
func compileSchema(tree map[string]any) (*schema, error) {
	plain, err := normalise(tree)
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
	if err := c.AddResource(schemaURL, root); err != nil {
		return nil, err
	}
	compiled, err := c.Compile(schemaURL)
	if err != nil {
		return nil, fmt.Errorf("not a valid JSON Schema: %w", err)
	}
	s := &schema{compiled, root, map[string]string{}}
	s.describePatterns(root)
	return s, nil
}

// describePatterns notes what the schema says in words of its patterns, which few can read.
func (s *schema) describePatterns(v any) {
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

// normalise gives a value the form that encoding/json would give it, numbers kept exact.
func normalise(v any) (any, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return jsonschema.UnmarshalJSON(bytes.NewReader(data))
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

func (s *schema) validate(v any) error {
	plain, err := normalise(v)
	if err != nil {
		return &sdk.ConfigError{Field: "config", Reason: err.Error()}
	}
	var invalid *jsonschema.ValidationError
	if err := s.compiled.Validate(plain); errors.As(err, &invalid) {
		var out []error
		for _, e := range s.leaves(plain, invalid) {
			out = append(out, e)
		}
		return errors.Join(out...)
	} else if err != nil {
		return &sdk.ConfigError{Field: "config", Reason: err.Error()}
	}
	return nil
}

// configErrors lists the *sdk.ConfigError that err is made of.
func configErrors(err error) []*sdk.ConfigError {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []*sdk.ConfigError
		for _, e := range joined.Unwrap() {
			out = append(out, configErrors(e)...)
		}
		return out
	}
	var one *sdk.ConfigError
	if errors.As(err, &one) {
		return []*sdk.ConfigError{one}
	}
	return []*sdk.ConfigError{{Reason: err.Error()}}
}

// leaves are the errors that have no finer cause. Alternatives (oneOf, anyOf) are told as one.
func (s *schema) leaves(root any, e *jsonschema.ValidationError) []*sdk.ConfigError {
	switch k := e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		return s.alternatives(root, e)
	case *kind.AdditionalProperties:
		return s.unknownFields(root, e, k.Properties)
	}
	if len(e.Causes) == 0 {
		return []*sdk.ConfigError{{Field: fieldPath(root, e.InstanceLocation), Reason: s.reason(e)}}
	}
	var out []*sdk.ConfigError
	for _, cause := range e.Causes {
		out = append(out, s.leaves(root, cause)...)
	}
	return out
}

// alternatives are the errors of the branches that are for a value of this type, or of all where there is none.
func (s *schema) alternatives(root any, e *jsonschema.ValidationError) []*sdk.ConfigError {
	branches := slices.DeleteFunc(slices.Clone(e.Causes), func(b *jsonschema.ValidationError) bool { return ofOtherType(b, e.InstanceLocation) })
	switch len(branches) {
	case 1:
		return s.leaves(root, branches[0])
	case 0:
		branches = e.Causes
	}
	var texts []string
	for _, cause := range branches {
		for _, leaf := range s.leaves(root, cause) {
			if !slices.Contains(texts, leaf.Reason) {
				texts = append(texts, leaf.Reason)
			}
		}
	}
	return []*sdk.ConfigError{{Field: fieldPath(root, e.InstanceLocation), Reason: strings.Join(texts, ", or ")}}
}

// ofOtherType reports whether a branch wants another type of value at the location.
func ofOtherType(branch *jsonschema.ValidationError, location []string) bool {
	if _, ok := branch.ErrorKind.(*kind.Type); ok && slices.Equal(branch.InstanceLocation, location) {
		return true
	}
	return slices.ContainsFunc(branch.Causes, func(c *jsonschema.ValidationError) bool { return ofOtherType(c, location) })
}

func (s *schema) unknownFields(root any, e *jsonschema.ValidationError, names []string) []*sdk.ConfigError {
	known := s.properties(e.SchemaURL)
	var out []*sdk.ConfigError
	for _, name := range names {
		path := append(slices.Clone(e.InstanceLocation), name)
		reason := "unknown field"
		if len(known) > 0 {
			reason += "; known are " + strings.Join(known, ", ") + nearest.Hint(name, known)
		}
		out = append(out, &sdk.ConfigError{Field: fieldPath(root, path), Reason: reason})
	}
	return out
}

// properties are the names that the part of the schema at a URL knows.
func (s *schema) properties(url string) []string {
	_, pointer, _ := strings.Cut(url, "#")
	var at any = s.root
	for _, token := range strings.Split(strings.Trim(pointer, "/"), "/") {
		token = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
		switch v := at.(type) {
		case map[string]any:
			if token != "" {
				at = v[token]
			}
		case []any:
			if i, err := strconv.Atoi(token); err == nil && i < len(v) {
				at = v[i]
			}
		}
	}
	object, _ := at.(map[string]any)
	known, _ := object["properties"].(map[string]any)
	return slices.Sorted(maps.Keys(known))
}

var english = message.NewPrinter(language.English)

// grouped are numbers with the commas that the printer puts in, as in 65,535: here they would look like two.
var grouped = regexp.MustCompile(`\d(,\d{3})+\b`)

// reason is what is wrong and, as far as the schema tells, what would be right.
func (s *schema) reason(e *jsonschema.ValidationError) string {
	switch k := e.ErrorKind.(type) {
	case *kind.Required:
		return "missing " + strings.Join(k.Missing, ", ")
	case *kind.FalseSchema:
		return "unknown field"
	case *kind.Type:
		return fmt.Sprintf("is of type %s; want %s", k.Got, strings.Join(k.Want, " or "))
	case *kind.Enum:
		return fmt.Sprintf("is %v; want one of %s", k.Got, list(k.Want)) + unquoted(k)
	case *kind.Pattern:
		if words := s.patterns[k.Want]; words != "" {
			return fmt.Sprintf("%q: want %s", k.Got, words)
		}
		return fmt.Sprintf("%q does not match the pattern %s", k.Got, k.Want)
	}
	return grouped.ReplaceAllStringFunc(e.ErrorKind.LocalizedString(english), func(n string) string { return strings.ReplaceAll(n, ",", "") })
}

// unquoted reports words that YAML takes for a boolean.
func unquoted(k *kind.Enum) string {
	words := map[bool][]any{true: {"on", "yes", "y"}, false: {"off", "no", "n"}}
	got, ok := k.Got.(bool)
	for _, word := range words[got] {
		if ok && slices.Contains(k.Want, word) {
			return fmt.Sprintf("; YAML reads %s as %t unless it is in quotes", word, got)
		}
	}
	return ""
}

func list(values []any) string {
	var out []string
	for _, v := range values {
		out = append(out, fmt.Sprint(v))
	}
	return strings.Join(out, ", ")
}

// fieldPath writes a location the way people do: rules[3].dstPort.
func fieldPath(root any, location []string) string {
	var out strings.Builder
	for _, token := range location {
		if array, ok := root.([]any); ok {
			fmt.Fprintf(&out, "[%s]", token)
			if i, err := strconv.Atoi(token); err == nil && i < len(array) {
				root = array[i]
			}
			continue
		}
		if out.Len() > 0 {
			out.WriteByte('.')
		}
		out.WriteString(token)
		object, _ := root.(map[string]any)
		root = object[token]
	}
	return out.String()
}

// maxDefaultDepth ends defaults that contain themselves by reference.
const maxDefaultDepth = 32

// fillDefaults returns a deep copy of v with defaults put in where a property of an object is absent. References are
// followed within the schema (#/$defs/name).
func fillDefaults(root, s map[string]any, v any, depth int) any {
	if depth > maxDefaultDepth {
		return v
	}
	s = resolve(root, s)
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
		if value, ok := resolve(root, property)["default"]; ok {
			out[name] = fillDefaults(root, property, value, depth+1)
		}
	}
	return out
}

func resolve(root, s map[string]any) map[string]any {
	ref, _ := s["$ref"].(string)
	name, ok := strings.CutPrefix(ref, "#/$defs/")
	if !ok {
		return s
	}
	defs, _ := root["$defs"].(map[string]any)
	target, _ := defs[name].(map[string]any)
	merged := make(map[string]any, len(target)+len(s))
	maps.Copy(merged, target)
	maps.Copy(merged, s)
	delete(merged, "$ref")
	return merged
}
