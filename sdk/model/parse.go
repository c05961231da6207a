// SPDX-License-Identifier: Apache-2.0

package model

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// MaxDocument is the maximum size of a document in bytes: the largest model with numbers of 17 digits, plus a margin.
const MaxDocument = 8 << 20

// maxParts limits the objects and lists of a document: the largest forest has 50,000. Decoding would take up to 40
// times the memory of the text before limits of the content could be checked.
const maxParts = 2 * MaxWords

// Error is an invalid document. Reason says what to do.
type Error struct {
	Field  string // such as layers[1].weights[2][3]; empty for the document as a whole
	Reason string
}

func (e *Error) Error() string {
	if e.Field == "" {
		return "model: " + e.Reason
	}
	return "model: " + e.Field + ": " + e.Reason
}

func wrong(field, reason string, args ...any) error {
	return &Error{field, fmt.Sprintf(reason, args...)}
}

// Parse reads a document and checks it. Errors are *Error.
func Parse(text []byte) (*Document, error) {
	if len(text) > MaxDocument {
		return nil, wrong("", "%d bytes; a model has at most %d", len(text), MaxDocument)
	}
	if n := bytes.Count(text, []byte("{")) + bytes.Count(text, []byte("[")); n > maxParts {
		return nil, wrong("", "%d objects and lists; a model has at most %d: train fewer or lower trees", n, maxParts)
	}
	var d Document
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return nil, explain(err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, wrong("", "unexpected data after the document; a file contains one model")
	}
	return &d, d.Check()
}

// explain converts errors of encoding/json to *Error.
func explain(err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return wrong("", "not JSON at byte %d (%v); NaN and Infinity are no numbers of a model: train it again, or clip "+
			"its weights", syntax.Offset, syntax)
	case errors.As(err, &kind):
		return wrong(kind.Field, "%s is no %s, or out of range", kind.Value, kind.Type)
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return wrong("", "truncated document; copy it again")
	}
	return wrong("", "%v", err)
}
