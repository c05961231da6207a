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
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

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

// JSON reads one JSON value. Keys given twice, which encoding/json lets pass, integers that would be rounded and values
// nested too deep are mistakes. The library's Unmarshal, with a function for numbers, would make kerb 0.5 MB larger and
// take twice as long.
func JSON(data []byte) (any, error) {
	d := jsontext.NewDecoder(bytes.NewBuffer(data))
	value, err := readValue(d)
	if err != nil {
		return nil, explain(d, err)
	}
	if _, err := d.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, &apierrors.Invalid{Reason: "unexpected data after the JSON value"}
	}
	return value, nil
}

// explain says what errors of the library mean here.
func explain(d *jsontext.Decoder, err error) error {
	var syntax *jsontext.SyntacticError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &apierrors.Invalid{Reason: "unexpected end of JSON"}
	case !errors.As(err, &syntax):
		return err
	case errors.Is(err, jsontext.ErrDuplicateName):
		return &apierrors.Invalid{Field: fieldPath(d, syntax.JSONPointer), Reason: "occurs twice"}
	}
	return &apierrors.Invalid{Reason: fmt.Sprintf("not JSON: %v (at byte %d)", syntax.Err, syntax.ByteOffset)}
}

// fieldPath writes where the decoder is, by a pointer to it: rules[3].dstPort.
func fieldPath(d *jsontext.Decoder, pointer jsontext.Pointer) string {
	var out strings.Builder
	level := 0
	for token := range pointer.Tokens() {
		level++
		if kind, _ := d.StackIndex(level); kind == '[' {
			fmt.Fprintf(&out, "[%s]", token)
		} else {
			out.WriteString("." + token)
		}
	}
	return strings.TrimPrefix(out.String(), ".")
}

// maxDepth is far more than any resource needs: decoding recurses, and a stack that overflows ends the agent.
const maxDepth = 64

func readValue(d *jsontext.Decoder) (any, error) {
	if d.StackDepth() > maxDepth {
		return nil, &apierrors.Invalid{Reason: fmt.Sprintf("nested more than %d deep", maxDepth)}
	}
	token, err := d.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case '{':
		return readObject(d)
	case '[':
		return readList(d)
	case '"':
		return token.String(), nil
	case '0':
		return readNumber(d, token.String())
	case 'n':
		return nil, nil
	}
	return token.Bool(), nil
}

func readObject(d *jsontext.Decoder) (any, error) {
	object := map[string]any{}
	for d.PeekKind() != '}' {
		token, err := d.ReadToken()
		if err != nil {
			return nil, err
		}
		key := token.String()
		if object[key], err = readValue(d); err != nil {
			return nil, err
		}
	}
	_, err := d.ReadToken()
	return object, err
}

func readList(d *jsontext.Decoder) (any, error) {
	list := []any{}
	for d.PeekKind() != ']' {
		value, err := readValue(d)
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	_, err := d.ReadToken()
	return list, err
}

// readNumber refuses integers that would be rounded: numbers are kept as float64, which is exact up to 2^53.
func readNumber(d *jsontext.Decoder, text string) (any, error) {
	const exact = 1 << 53
	value, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		text += " is out of range for a number"
	case math.Abs(value) < exact, strings.ContainsAny(text, ".eE"), strconv.FormatFloat(value, 'f', 0, 64) == text:
		return value, nil
	default:
		text += fmt.Sprintf(" cannot be kept exactly, as all integers up to %d can", exact)
	}
	return nil, &apierrors.Invalid{Field: fieldPath(d, d.StackPointer()), Reason: text}
}
