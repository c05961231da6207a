// SPDX-License-Identifier: Apache-2.0

// Package fault holds the kinds of errors that reach the operator. Packages return them, wrapped or not; the server maps
// them to HTTP statuses and the command line to exit codes, each in one place.
package fault

import (
	"errors"
	"fmt"
)

// NotFound says that a named thing does not exist.
type NotFound struct {
	Kind string // for example Module
	Name string
}

func (e *NotFound) Error() string { return fmt.Sprintf("%s %s does not exist", e.Kind, e.Name) }

// Invalid says that what the operator wrote is wrong, and where.
type Invalid struct {
	Resource string // for example Module fw; empty when the request itself is wrong
	Field    string // for example spec.config.rules[3].dstPort; empty when it is not one field
	Reason   string // what is wrong and what would be right
	File     string // that it is in; empty if unknown
	Line     int    // in the YAML that it was in, from 1; 0 if unknown
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
		return Place(e.File, e.Line, e.Column) + ": " + text
	case e.Line > 0:
		return fmt.Sprintf("line %d: %s", e.Line, text)
	}
	return text
}

// Place writes a place in a file as compilers do: file:line:column, as far as they are known.
func Place(file string, line, column int) string {
	for _, n := range []int{line, column} {
		if n > 0 {
			file += fmt.Sprintf(":%d", n)
		}
	}
	return file
}

// Invalids lists the *Invalid that err wraps or joins, in their order.
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

// Join is errors.Join for mistakes.
func Join(all []*Invalid) error {
	var errs []error
	for _, e := range all {
		errs = append(errs, e)
	}
	return errors.Join(errs...)
}

// Conflict says that a request is right in itself but does not go with what is there.
type Conflict struct {
	Reason string
}

func (e *Conflict) Error() string { return e.Reason }

// Changed says that a resource is not what the client had read when it asked for a change.
type Changed struct {
	Resource string
	Reason   string
}

func (e *Changed) Error() string { return e.Resource + ": " + e.Reason }

// Unavailable says that something the request needs is not there now; the same request may succeed later.
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

// Rejected says that the kernel's verifier refused a program.
type Rejected struct {
	Plain string // one sentence for people
	Log   string // the verifier's words, complete
}

func (e *Rejected) Error() string { return e.Plain }

// ReadOnly says that the desired state cannot be written: read-only file system, full disk.
type ReadOnly struct {
	Reason string
}

func (e *ReadOnly) Error() string { return e.Reason }
