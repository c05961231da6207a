// SPDX-License-Identifier: Apache-2.0

// Package yamldoc reads and writes YAML as JSON has it: keys are texts. It knows where in a YAML file, or a JSON file,
// a resource and its fields are, and which numbers in it YAML 1.1 reads otherwise than people do.
package yamldoc

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kerb-edge/kerb/internal/apierrors"
)

// Split cuts data at its document markers. Every part keeps the line numbers of the whole by leading empty lines.
func Split(data []byte) [][]byte {
	var parts [][]byte
	var part []byte
	for i, line := range bytes.SplitAfter(data, []byte("\n")) {
		if rest, ok := bytes.CutPrefix(line, []byte("---")); ok && len(bytes.TrimLeft(rest, " \t\r\n")) < max(len(rest), 1) {
			parts = append(parts, part)
			part = bytes.Repeat([]byte("\n"), i)
			line = append([]byte("   "), rest...)
		}
		part = append(part, line...)
	}
	return append(parts, part)
}

// Decode returns the value of one document, as Split returns it: nil for an empty one. Numbers are int, uint64 or
// float64; octals are the first maxOctals of them that begin with a zero. Errors are the parser's, each mistake in a
// line that begins with "line N: ": syntax, and keys given twice.
func Decode(part []byte) (value any, octals []Octal, err error) {
	root, err := parse(part)
	if root == nil || err != nil {
		return nil, nil, err
	}
	var c converter
	if err := c.convert(root, nil, 0); err != nil {
		return nil, nil, err
	}
	if err := root.Decode(&value); err != nil {
		return nil, nil, err
	}
	if expanded(root, map[*yaml.Node]int{}) > maxExpanded*len(part)+1<<20 {
		return nil, nil, fmt.Errorf("line %d: aliases repeat texts so often that the document has more than %d times "+
			"its length", root.Line, maxExpanded)
	}
	return value, c.octals, nil
}

// Limits against documents that are made to use up memory. No resource comes near them.
const (
	maxDepth    = 64 // as package decode has it
	maxOctals   = 100
	maxExpanded = 10 // times the length of a document that its texts may have with aliases
)

// place is where a node is: in the mapping or sequence above it.
type place struct {
	above *place
	key   string
	index int // in a sequence, where key is empty
}

// String returns the path: rules[3].dstPort.
func (p *place) String() string {
	var parts []string
	for ; p != nil; p = p.above {
		if p.key == "" {
			parts = append(parts, fmt.Sprintf("[%d]", p.index))
		} else {
			parts = append(parts, "."+p.key)
		}
	}
	slices.Reverse(parts)
	return strings.TrimPrefix(strings.Join(parts, ""), ".")
}

// converter makes texts of what YAML has and JSON has not: dates, and keys that are numbers, booleans or null.
type converter struct{ octals []Octal }

func (c *converter) convert(node *yaml.Node, at *place, depth int) error {
	const text, date, merge = "!!str", "!!timestamp", "!!merge"
	if depth > maxDepth {
		return fmt.Errorf("line %d: nested more than %d deep", node.Line, maxDepth)
	}
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			key := node.Content[i]
			if key.Kind == yaml.ScalarNode && key.ShortTag() != merge {
				key.Tag = text
			}
			if err := c.convert(node.Content[i+1], &place{above: at, key: key.Value}, depth+1); err != nil {
				return err
			}
		}
	case yaml.SequenceNode:
		for i, item := range node.Content {
			if err := c.convert(item, &place{above: at, index: i}, depth+1); err != nil {
				return err
			}
		}
	case yaml.ScalarNode:
		if node.ShortTag() == date {
			node.Tag = text
		}
		const plain yaml.Style = 0
		if node.Style == plain && len(c.octals) < maxOctals && leadingZero.MatchString(node.Value) {
			c.octals = append(c.octals, newOctal(node, at.String()))
		}
	}
	return nil
}

// expanded returns the length of all texts of a node, with those that its aliases repeat. Known has those of nodes that
// have been seen. The decoder refuses aliases of what contains them.
func expanded(node *yaml.Node, known map[*yaml.Node]int) int {
	if n, ok := known[node]; ok {
		return n
	}
	known[node] = 0
	n := len(node.Value)
	if node.Alias != nil {
		n = expanded(node.Alias, known)
	}
	for _, part := range node.Content {
		n = min(n+expanded(part, known), math.MaxInt/2)
	}
	known[node] = n
	return n
}

func newOctal(node *yaml.Node, path string) Octal {
	o := Octal{Line: node.Line, Column: node.Column, Field: path, Value: node.Value}
	if n, err := strconv.ParseInt(strings.ReplaceAll(node.Value, "_", ""), 8, 64); err == nil {
		o.Octal = strconv.FormatInt(n, 10)
	}
	return o
}

// Encode returns v as YAML, with the names and the omissions that its JSON has.
func Encode(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var value any
	if err := yaml.Unmarshal(data, &value); err != nil { // unlike encoding/json, it has integers
		return nil, err
	}
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	e.CompactSeqIndent()
	err = e.Encode(value)
	return out.Bytes(), err
}

// Index has the positions in a file, by resource.
type Index []*yaml.Node

// Parse returns the positions in data. A part that is not YAML has none.
func Parse(data []byte) Index {
	var all Index
	for _, part := range Split(data) {
		root, err := parse(part)
		if root == nil || err != nil {
			continue
		}
		if root.Kind == yaml.SequenceNode {
			all = append(all, root.Content...)
		} else {
			all = append(all, root)
		}
	}
	return all
}

// parse returns the root of a document, nil if there is nothing in it.
func parse(part []byte) (*yaml.Node, error) {
	var doc, more yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(part))
	if err := d.Decode(&doc); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, err
	}
	if err := d.Decode(&more); err == nil {
		return nil, fmt.Errorf("line %d: a second document; begin it with a line ---", more.Line)
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(doc.Content) == 0 || doc.Content[0].Tag == "!!null" {
		return nil, nil
	}
	return doc.Content[0], nil
}

// At returns where a field of the resource is, counted from 1, or the nearest thing above it that is there.
func (x Index) At(resource int, field string) (line, column int) {
	if resource < 0 || resource >= len(x) {
		return 0, 0
	}
	node := x[resource]
	line, column = node.Line, node.Column
	for field != "" {
		key, value, rest := step(node, field)
		if key == nil {
			break
		}
		line, column, node, field = key.Line, key.Column, value, rest
	}
	return line, column
}

// Locate returns the mistakes that err joins with their places in the first resource of a file. Other errors stay as
// they are.
func (x Index) Locate(file string, err error) error {
	all := apierrors.Invalids(err)
	if len(all) == 0 {
		return err
	}
	for i, e := range all {
		all[i] = x.Position(file, 0, e)
	}
	SortByPosition(all)
	return apierrors.Join(all)
}

// Position returns a copy of e with the position of its field.
func (x Index) Position(file string, resource int, e *apierrors.Invalid) *apierrors.Invalid {
	at := *e
	at.File = file
	if at.Line == 0 {
		at.Line, at.Column = x.At(resource, at.Field)
	}
	return &at
}

// SortByPosition sorts mistakes by file, line and column.
func SortByPosition(all []*apierrors.Invalid) {
	slices.SortStableFunc(all, func(a, b *apierrors.Invalid) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// step follows the first part of a path like rules[3].dstPort. Keys may have dots.
func step(node *yaml.Node, field string) (key, value *yaml.Node, rest string) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if index, after, ok := strings.Cut(strings.TrimPrefix(field, "["), "]"); ok && node.Kind == yaml.SequenceNode &&
		field[0] == '[' {
		if i, err := strconv.Atoi(index); err == nil && 0 <= i && i < len(node.Content) {
			return node.Content[i], node.Content[i], strings.TrimPrefix(after, ".")
		}
		return nil, nil, ""
	}
	if node.Kind != yaml.MappingNode {
		return nil, nil, ""
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		k := node.Content[i]
		after, ok := strings.CutPrefix(field, k.Value)
		if ok && k.Value != "" && (key == nil || len(k.Value) > len(key.Value)) &&
			(after == "" || after[0] == '.' || after[0] == '[') {
			key, value, rest = k, node.Content[i+1], strings.TrimPrefix(after, ".")
		}
	}
	return key, value, rest
}

// Octal is a number with a leading zero.
type Octal struct {
	Line, Column int
	Field, Value string
	Octal        string // its value in YAML 1.1, in decimal; empty if it has no octal meaning
}

func (o Octal) Error() string {
	plain := strings.TrimLeft(strings.ReplaceAll(o.Value, "_", ""), "+-0")
	if plain == "" {
		plain = "0"
	}
	if o.Octal == "" {
		return fmt.Sprintf("%s: a number must not begin with 0; write %s, or \"%s\" in quotes for a text", o.Value,
			plain, o.Value)
	}
	return fmt.Sprintf("%s: YAML 1.1 reads a number that begins with 0 as octal, here as %s; write %s if octal is "+
		"intended, %s for the decimal number, or \"%s\" in quotes for a text",
		o.Value, o.Octal, o.Octal, plain, o.Value)
}

var leadingZero = regexp.MustCompile(`^[-+]?0[0-9_]+$`)
