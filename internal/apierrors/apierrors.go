// SPDX-License-Identifier: Apache-2.0

// Package apierrors defines the errors that clients of the API see. The server maps them to HTTP statuses and the
// command line to exit codes, each in one place. They may be wrapped.
package apierrors

import (
	"errors"
	"fmt"
)

// NotFound is returned for an object that does not exist.
type NotFound struct {
	Kind string // for example Module
	Name string
}

func (e *NotFound) Error() string { return fmt.Sprintf("%s %s does not exist", e.Kind, e.Name) }

// Invalid is a mistake in a request or file, with its position.
type Invalid struct {
	Resource string // for example Module fw; empty when the request itself is wrong
	Field    string // for example spec.config.rules[3].dstPort; empty when it is not one field
	Reason   string // what is wrong, and which values are valid
	File     string // the path of the file; empty if unknown
	Line     int    // in the YAML, from 1; 0 if unknown
	Column   int
}

func (e *Invalid) Error() string {
	text := e.Reason
	if e.Field != "" {
		text = e.Field + ": " + text
	}
	if e.Resource != "" {
		text = e.Resource + ": " + text
	}
	switch {
	case e.File != "":
		return FormatPosition(e.File, e.Line, e.Column) + ": " + text
	case e.Line > 0:
		return fmt.Sprintf("line %d: %s", e.Line, text)
	}
	return text
}

// FormatPosition returns a position as compilers print it: file:line:column, as far as they are known.
func FormatPosition(file string, line, column int) string {
	for _, n := range []int{line, column} {
		if n > 0 {
			file += fmt.Sprintf(":%d", n)
		}
	}
	return file
}

// Invalids returns the *Invalid that err wraps or joins, in order.
func Invalids(err error) (all []*Invalid) {
	switch e := err.(type) {
	case nil:
	case *Invalid:
		return []*Invalid{e}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, Invalids(one)...)
		}
	default:
		return Invalids(errors.Unwrap(err))
	}
	return all
}

// Join is errors.Join for a slice of *Invalid.
func Join(all []*Invalid) error {
	var errs []error
	for _, e := range all {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// Conflict is returned for a valid request that conflicts with the current state.
type Conflict struct {
	Reason string
}

func (e *Conflict) Error() string { return e.Reason }

// PreconditionFailed is returned if a resource has changed since the client read it.
type PreconditionFailed struct {
	Resource string
	Reason   string
}

func (e *PreconditionFailed) Error() string { return e.Resource + ": " + e.Reason }

// Unavailable is returned if something that the request needs is temporarily missing; it may succeed later.
type Unavailable struct {
	Resource string // for example Module fw; empty when it is not about one
	Reason   string
}

func (e *Unavailable) Error() string {
	if e.Resource == "" {
		return e.Reason
	}
	return e.Resource + ": " + e.Reason
}

// Rejected is returned if the kernel's verifier rejects a program.
type Rejected struct {
	Summary string // one sentence
	Log     string // the complete log of the verifier
}

func (e *Rejected) Error() string { return e.Summary }

// ReadOnly is returned if the desired state cannot be written: read-only file system, full disk.
type ReadOnly struct {
	Reason string
}

func (e *ReadOnly) Error() string { return e.Reason }
