// SPDX-License-Identifier: Apache-2.0

// Package decode reads YAML and JSON that people have written, strictly: unknown fields, keys given twice, numbers that
// YAML 1.1 reads as octal and wrong types are *apierrors.Invalid, all of them joined, with lines and columns as far as
// they are known.
package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/yamldoc"
)

// File reads the one document of a file into v, a pointer to a struct; fields that the file does not have keep their
// values. The index has the positions of the fields, for mistakes that the caller finds.
func File(file string, data []byte, v any) (yamldoc.Index, error) {
	object, index, err := Object(file, data)
	if err != nil {
		return index, err
	}
	return index, index.Locate(file, Into(object, v))
}

// Object reads the one document of a file, which is a mapping, as encoding/json has it.
func Object(file string, data []byte) (map[string]any, yamldoc.Index, error) {
	index := yamldoc.Parse(data)
	object := map[string]any{}
	found := false
	for _, doc := range yamldoc.Split(data) {
		value, err := YAML(doc)
		if err != nil {
			return nil, index, index.Locate(file, err)
		}
		if value == nil {
			continue
		}
		mapping, ok := value.(map[string]any)
		if !ok || found {
			return nil, index, index.Locate(file, &apierrors.Invalid{Reason: "expected one document with named fields"})
		}
		object, found = mapping, true
	}
	return object, index, nil
}

// Into checks a value, as decoded from JSON, against the schema of what v points to, and puts it there.
func Into(object map[string]any, v any) error {
	if err := Validate(reflect.TypeOf(v).Elem(), object); err != nil {
		return err
	}
	restore := lift(object, reflect.ValueOf(v).Elem())
	data, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(data, v)
	}
	restore()
	var mismatch *json.UnmarshalTypeError // what the schema lets pass: integers beyond those of Go
	if errors.As(err, &mismatch) {
		return &apierrors.Invalid{Field: jsonPath(mismatch.Field), Reason: "cannot be a " + mismatch.Value}
	}
	if err != nil {
		return &apierrors.Invalid{Reason: err.Error()}
	}
	return nil
}

// lift takes out of an object what v keeps as it was decoded, such as the config of a module, often nearly all of
// it. restore puts it back, and into v.
func lift(object map[string]any, v reflect.Value) (restore func()) {
	var all []func()
	if v.Kind() != reflect.Struct {
		return func() {}
	}
	for i := range v.NumField() {
		field, of := v.Field(i), v.Type().Field(i)
		if of.Anonymous && of.Type.Kind() == reflect.Struct && of.Tag.Get("json") == "" { // its fields are of the same object
			all = append(all, lift(object, field))
			continue
		}
		name, _, _ := strings.Cut(of.Tag.Get("json"), ",")
		value, isObject := object[name].(map[string]any)
		if !isObject {
			continue
		}
		if kept, ok := field.Interface().(map[string]any); ok && kept == nil {
			delete(object, name)
			all = append(all, func() {
				object[name] = value
				field.Set(reflect.ValueOf(value))
			})
		} else if field.Kind() == reflect.Struct {
			all = append(all, lift(value, field))
		}
	}
	return func() {
		for _, restore := range all {
			restore()
		}
	}
}

// YAML reads one YAML document. In addition to mistakes in numbers there is a value.
func YAML(doc []byte) (any, error) {
	value, octals, err := yamldoc.Decode(doc)
	if err != nil {
		return nil, syntaxErrors(err)
	}
	data, err := json.Marshal(value)
	if err != nil {
		return nil, &apierrors.Invalid{Reason: err.Error()}
	}
	value, err = JSON(data)
	if err != nil {
		return nil, err
	}
	return value, refuse(octals)
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): (.*)$`)

// syntaxErrors are what the YAML parser has to say, with their lines.
func syntaxErrors(err error) error {
	var all []error
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		match := yamlLine.FindStringSubmatch(line)
		switch {
		case match != nil:
			number, _ := strconv.Atoi(match[1])
			all = append(all, &apierrors.Invalid{Reason: match[2], Line: number})
		case line != "yaml: unmarshal errors:":
			all = append(all, &apierrors.Invalid{Reason: strings.TrimPrefix(line, "yaml: ")})
		}
	}
	return errors.Join(all...)
}

// jsonPath is a path of encoding/json without embedded structs, which it names by their types: JSON has no level for
// them, and its names of fields begin with a small letter.
func jsonPath(path string) string {
	names := slices.DeleteFunc(strings.Split(path, "."), func(name string) bool {
		return name != "" && unicode.IsUpper(rune(name[0]))
	})
	return strings.Join(names, ".")
}

// refuse refuses numbers that YAML 1.1 reads otherwise than people do.
func refuse(octals []yamldoc.Octal) error {
	var all []error
	for _, o := range octals {
		all = append(all, &apierrors.Invalid{Field: o.Field, Reason: o.Error(), Line: o.Line, Column: o.Column})
	}
	return errors.Join(all...)
}

// JSON reads one JSON value and refuses keys given twice, which encoding/json lets pass. What has mistakes is read
// again, token by token, which takes four times as long and finds their places.
func JSON(data []byte) (any, error) {
	if value, ok := decodeWhole(data); ok {
		return value, nil
	}
	return decodeTokens(data)
}

// decodeWhole reports whether data is one value without mistakes.
func decodeWhole(data []byte) (value any, ok bool) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if d.Decode(&value) != nil || len(bytes.TrimLeft(data[d.InputOffset():], " \t\r\n")) > 0 {
		return nil, false
	}
	value, members, ok := convert(value, 0)
	return value, ok && members == countColons(data) // fewer: a key is given twice
}

// convert returns a value with its numbers as float64, how many members its objects have, and whether it is accepted.
func convert(value any, depth int) (_ any, members int, ok bool) {
	if depth > maxDepth {
		return nil, 0, false
	}
	within := func(sub any) any {
		sub, n, accepted := convert(sub, depth+1)
		members, ok = members+n, ok && accepted
		return sub
	}
	ok = true
	switch v := value.(type) {
	case json.Number:
		number, err := decodeNumber(v, "")
		return number, 0, err == nil
	case []any:
		for i := range v {
			v[i] = within(v[i])
		}
	case map[string]any:
		members = len(v)
		for key := range v {
			v[key] = within(v[key])
		}
	}
	return value, members, ok
}

// countColons counts those of valid JSON that are not in strings: one for each member of an object.
func countColons(data []byte) (n int) {
	quoted := false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\':
			i++ // only in strings
		case c == ':' && !quoted:
			n++
		}
	}
	return n
}

func decodeTokens(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	value, err := decodeValue(d, "", 0)
	if err != nil {
		return nil, explain(err, d.InputOffset())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, &apierrors.Invalid{Reason: "unexpected data after the JSON value"}
	}
	return value, nil
}

func explain(err error, offset int64) error {
	var invalid *apierrors.Invalid
	switch {
	case errors.As(err, &invalid):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &apierrors.Invalid{Reason: "unexpected end of JSON"}
	}
	return &apierrors.Invalid{Reason: fmt.Sprintf("not JSON: %v (at byte %d)", err, offset)}
}

// maxDepth is far more than any resource needs: decoding recurses, and a stack that overflows ends the agent.
const maxDepth = 64

func decodeValue(d *json.Decoder, path string, depth int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	if depth > maxDepth {
		return nil, &apierrors.Invalid{Reason: fmt.Sprintf("nested more than %d deep", maxDepth)}
	}
	switch token {
	case json.Delim('{'):
		return decodeObject(d, path, depth+1)
	case json.Delim('['):
		return decodeList(d, path, depth+1)
	}
	if number, ok := token.(json.Number); ok {
		return decodeNumber(number, path)
	}
	return token, nil
}

// decodeNumber refuses integers that would be rounded: numbers are kept as float64, which is exact up to 2^53.
func decodeNumber(number json.Number, path string) (any, error) {
	value, err := number.Float64()
	if err != nil {
		return nil, &apierrors.Invalid{Field: path, Reason: number.String() + " is out of range for a number"}
	}
	if text := number.String(); !strings.ContainsAny(text, ".eE") && strconv.FormatFloat(value, 'f', 0, 64) != text {
		reason := fmt.Sprintf("%s cannot be kept exactly, as all integers up to %d can", text, 1<<53)
		return nil, &apierrors.Invalid{Field: path, Reason: reason}
	}
	return value, nil
}

func decodeObject(d *json.Decoder, path string, depth int) (any, error) {
	object := map[string]any{}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		key := token.(string) // a key is a string, or Token has failed
		field := strings.TrimPrefix(path+"."+key, ".")
		if _, ok := object[key]; ok {
			return nil, &apierrors.Invalid{Field: field, Reason: "occurs twice"}
		}
		if object[key], err = decodeValue(d, field, depth); err != nil {
			return nil, err
		}
	}
	_, err := d.Token()
	return object, err
}

func decodeList(d *json.Decoder, path string, depth int) (any, error) {
	list := []any{}
	for d.More() {
		value, err := decodeValue(d, fmt.Sprintf("%s[%d]", path, len(list)), depth)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	_, err := d.Token()
	return list, err
}
