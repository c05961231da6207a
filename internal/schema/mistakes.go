// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/suggest"
)

const missing = "missing "

// Validate checks a value as encoding/json decodes it into an any. The error joins a *apierrors.Invalid for each
// mistake, sorted by field.
func (s *Schema) Validate(v any) error {
	err := s.compiled.Validate(v)
	var invalid *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil
	case !errors.As(err, &invalid):
		return &apierrors.Invalid{Reason: err.Error()}
	}
	all := withoutMisspelt(s.leaves(v, invalid))
	slices.SortStableFunc(all, func(a, b *apierrors.Invalid) int { return cmp.Compare(a.Field, b.Field) })
	return apierrors.Join(all)
}

// withoutMisspelt leaves out that a field is missing which is there under a misspelt name: that is one mistake.
func withoutMisspelt(all []*apierrors.Invalid) []*apierrors.Invalid {
	type field struct{ parent, name string }
	meant := map[field]bool{}
	for _, e := range all {
		if name := suggest.Suggested(e.Reason); name != "" {
			parent := e.Field[:max(0, strings.LastIndexByte(e.Field, '.'))]
			meant[field{parent, name}] = true
		}
	}
	return slices.DeleteFunc(all, func(e *apierrors.Invalid) bool {
		name, ok := strings.CutPrefix(e.Reason, missing)
		return ok && meant[field{e.Field, name}]
	})
}

// leaves returns the errors that have no finer cause. Alternatives (oneOf, anyOf) become one.
func (s *Schema) leaves(root any, e *jsonschema.ValidationError) []*apierrors.Invalid {
	switch k := e.ErrorKind.(type) {
	case *kind.AnyOf, *kind.OneOf:
		return s.alternatives(root, e)
	case *kind.AdditionalProperties:
		return s.unknownFields(root, e, k.Properties)
	case *kind.Required:
		var out []*apierrors.Invalid
		for _, name := range k.Missing {
			out = append(out, &apierrors.Invalid{Field: fieldPath(root, e.InstanceLocation), Reason: missing + name})
		}
		return out
	}
	if len(e.Causes) == 0 {
		return []*apierrors.Invalid{{Field: fieldPath(root, e.InstanceLocation), Reason: s.reason(e)}}
	}
	var out []*apierrors.Invalid
	for _, cause := range e.Causes {
		out = append(out, s.leaves(root, cause)...)
	}
	return out
}

// alternatives are the errors of the branches that are for a value of this type, or of all where there is none.
func (s *Schema) alternatives(root any, e *jsonschema.ValidationError) []*apierrors.Invalid {
	branches := slices.DeleteFunc(slices.Clone(e.Causes), func(b *jsonschema.ValidationError) bool {
		return ofOtherType(b, e.InstanceLocation)
	})
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
	return []*apierrors.Invalid{{Field: fieldPath(root, e.InstanceLocation), Reason: strings.Join(texts, ", or ")}}
}

// ofOtherType reports whether a branch wants another type of value at the location.
func ofOtherType(branch *jsonschema.ValidationError, location []string) bool {
	if _, ok := branch.ErrorKind.(*kind.Type); ok && slices.Equal(branch.InstanceLocation, location) {
		return true
	}
	return slices.ContainsFunc(branch.Causes, func(c *jsonschema.ValidationError) bool { return ofOtherType(c, location) })
}

// unknownFields returns one error per unknown field, with the known ones and the most similar as a suggestion.
func (s *Schema) unknownFields(root any, e *jsonschema.ValidationError, names []string) []*apierrors.Invalid {
	known := s.properties(e.SchemaURL)
	var out []*apierrors.Invalid
	for _, name := range names {
		path := append(slices.Clone(e.InstanceLocation), name)
		reason := "unknown field"
		if len(known) > 0 {
			reason += "; known are " + strings.Join(known, ", ") + suggest.DidYouMean(name, known)
		}
		out = append(out, &apierrors.Invalid{Field: fieldPath(root, path), Reason: reason})
	}
	return out
}

// properties returns the names, other than read-only ones, that the part of the schema at a URL knows.
func (s *Schema) properties(url string) []string {
	_, pointer, _ := strings.Cut(url, "#")
	root, _ := s.root.Get() // the text is of what was compiled
	var at any = root
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
	return slices.DeleteFunc(slices.Sorted(maps.Keys(known)), func(name string) bool {
		property, _ := known[name].(map[string]any)
		return property["readOnly"] == true
	})
}

var english = message.NewPrinter(language.English)

// grouped are numbers with the commas that the printer puts in, as in 65,535: here they would look like two.
var grouped = regexp.MustCompile(`\d(,\d{3})+\b`)

// reason is what is wrong and, as far as the schema says, what would be right.
func (s *Schema) reason(e *jsonschema.ValidationError) string {
	switch k := e.ErrorKind.(type) {
	case *kind.FalseSchema:
		return "unknown field"
	case *kind.Type:
		return fmt.Sprintf("is of type %s; want %s", k.Got, strings.Join(k.Want, " or "))
	case *kind.Enum:
		return fmt.Sprintf("is %v; want one of %s", k.Got, list(k.Want)) + unquoted(k)
	case *kind.Minimum:
		return fmt.Sprintf("is %s; want at least %s", number(k.Got), number(k.Want))
	case *kind.Maximum:
		return fmt.Sprintf("is %s; want at most %s", number(k.Got), number(k.Want))
	case *kind.MinLength:
		return fmt.Sprintf("has %d characters; want at least %d", k.Got, k.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("has %d characters; want at most %d", k.Got, k.Want)
	case *kind.MinItems:
		return fmt.Sprintf("has %d items; want at least %d", k.Got, k.Want)
	case *kind.MaxItems:
		return fmt.Sprintf("has %d items; want at most %d", k.Got, k.Want)
	case *kind.Format:
		return fmt.Sprintf("%q: want %s", k.Got, cmp.Or(formats[k.Want], k.Want))
	case *kind.Pattern:
		if words := s.patterns[k.Want]; words != "" {
			return fmt.Sprintf("%q: want %s", k.Got, words)
		}
		return fmt.Sprintf("%q does not match the pattern %s", k.Got, k.Want)
	}
	return grouped.ReplaceAllStringFunc(e.ErrorKind.LocalizedString(english), func(n string) string {
		return strings.ReplaceAll(n, ",", "")
	})
}

// formats are the names of formats that need more words.
var formats = map[string]string{"ip": "an IP address", "date-time": "a time as in RFC 3339, 2006-01-02T15:04:05Z"}

func number(n *big.Rat) string {
	value, _ := n.Float64()
	return strconv.FormatFloat(value, 'f', -1, 64)
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
