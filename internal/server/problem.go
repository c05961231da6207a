// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/kerb-edge/kerb/internal/apierrors"
)

// Problem is an error in the API (RFC 9457, application/problem+json). It is an error itself, and unwraps to the error
// of package apierrors from which it was made.
type Problem struct {
	Type     string    `json:"type" doc:"Machine-readable kind of problem" enum:"urn:kerb:invalid,urn:kerb:not-found,urn:kerb:conflict,urn:kerb:changed,urn:kerb:unavailable,urn:kerb:rejected,urn:kerb:read-only,urn:kerb:internal"`
	Title    string    `json:"title" doc:"Human-readable kind of problem"`
	Status   int       `json:"status" doc:"HTTP status"`
	Detail   string    `json:"detail" doc:"The problem and, where possible, what would be valid"`
	Resource string    `json:"resource,omitempty" doc:"The resource that is wrong, for example Module fw"`
	Field    string    `json:"field,omitempty" doc:"The field that is wrong, for example spec.config.rules[3].dstPort"`
	Errors   []Mistake `json:"errors,omitempty" doc:"All problems, if there are several or if they have positions"`
	Log      string    `json:"log,omitempty" doc:"The complete log of the verifier"`
}

// Mistake is one of the errors in a request.
type Mistake struct {
	Resource string `json:"resource,omitempty" doc:"The resource that is wrong, for example Module fw"`
	Field    string `json:"field,omitempty" doc:"The field that is wrong, for example spec.config.rules[3].dstPort"`
	Detail   string `json:"detail" doc:"The problem and, where possible, what would be valid"`
	Line     int    `json:"line,omitempty" doc:"Line of the request's YAML, from 1"`
	Column   int    `json:"column,omitempty" doc:"Column of the request's YAML, from 1"`
}

// problemType is the media type of problems, whatever the client's Accept header.
const problemType = "application/problem+json"

// Problem types.
const (
	typeInvalid     = "urn:kerb:invalid"
	typeNotFound    = "urn:kerb:not-found"
	typeConflict    = "urn:kerb:conflict"
	typeChanged     = "urn:kerb:changed"
	typeUnavailable = "urn:kerb:unavailable"
	typeRejected    = "urn:kerb:rejected"
	typeReadOnly    = "urn:kerb:read-only"
	typeInternal    = "urn:kerb:internal"
)

// problemOf is the only function that maps errors to HTTP.
func problemOf(err error) *Problem {
	var (
		known       *Problem
		invalid     *apierrors.Invalid
		notFound    *apierrors.NotFound
		conflict    *apierrors.Conflict
		changed     *apierrors.PreconditionFailed
		unavailable *apierrors.Unavailable
		rejected    *apierrors.Rejected
		readOnly    *apierrors.ReadOnly
		tooLarge    *http.MaxBytesError
	)
	detail := err.Error()
	switch {
	case errors.As(err, &known):
		return known
	case errors.As(err, &invalid):
		p := newProblem(typeInvalid, http.StatusBadRequest, detail)
		p.Resource, p.Field = invalid.Resource, invalid.Field
		p.Errors = mistakesOf(err)
		return p
	case errors.As(err, &notFound):
		p := newProblem(typeNotFound, http.StatusNotFound, detail)
		p.Resource = notFound.Kind + " " + notFound.Name
		return p
	case errors.As(err, &conflict):
		return newProblem(typeConflict, http.StatusConflict, detail)
	case errors.As(err, &changed):
		p := newProblem(typeChanged, http.StatusPreconditionFailed, detail)
		p.Resource = changed.Resource
		return p
	case errors.As(err, &rejected):
		p := newProblem(typeRejected, http.StatusUnprocessableEntity, detail)
		p.Log = rejected.Log
		return p
	case errors.As(err, &readOnly):
		return newProblem(typeReadOnly, http.StatusInsufficientStorage, detail)
	case errors.As(err, &unavailable), errors.Is(err, context.DeadlineExceeded):
		return newProblem(typeUnavailable, http.StatusServiceUnavailable, detail)
	case errors.As(err, &tooLarge):
		return newProblem(typeInvalid, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d MiB",
			tooLarge.Limit>>20))
	}
	return newProblem(typeInternal, http.StatusInternalServerError, detail)
}

// mistakesOf lists the errors joined in err. In addition there may be a reason why something could not be checked.
func mistakesOf(err error) (all []Mistake) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			all = append(all, mistakesOf(one)...)
		}
		return all
	}
	for _, m := range apierrors.Invalids(err) {
		all = append(all, Mistake{Resource: m.Resource, Field: m.Field, Detail: m.Reason, Line: m.Line, Column: m.Column})
	}
	var unavailable *apierrors.Unavailable
	switch {
	case len(all) > 0:
	case errors.As(err, &unavailable):
		all = []Mistake{{Resource: unavailable.Resource, Detail: unavailable.Reason}}
	default:
		all = []Mistake{{Detail: err.Error()}}
	}
	return all
}

func newProblem(kind string, status int, detail string) *Problem {
	return &Problem{Type: kind, Title: http.StatusText(status), Status: status, Detail: detail}
}

func (p *Problem) Error() string { return p.Detail }

// Unwrap returns the error that the problem stands for, or nil for internal ones.
func (p *Problem) Unwrap() error {
	switch p.Type {
	case typeInvalid:
		return p.invalids()
	case typeNotFound:
		return &apierrors.NotFound{Name: p.Resource}
	case typeConflict:
		return &apierrors.Conflict{Reason: p.Detail}
	case typeChanged:
		return &apierrors.PreconditionFailed{Resource: p.Resource, Reason: p.Detail}
	case typeUnavailable:
		return &apierrors.Unavailable{Reason: p.Detail}
	case typeRejected:
		return &apierrors.Rejected{Summary: p.Detail, Log: p.Log}
	case typeReadOnly:
		return &apierrors.ReadOnly{Reason: p.Detail}
	case "":
		return p.byStatus()
	}
	return nil
}

func (p *Problem) invalids() error {
	if len(p.Errors) == 0 {
		return &apierrors.Invalid{Resource: p.Resource, Field: p.Field, Reason: p.Detail}
	}
	var all []error
	for _, m := range p.Errors {
		all = append(all, &apierrors.Invalid{Resource: m.Resource, Field: m.Field, Reason: m.Detail, Line: m.Line,
			Column: m.Column})
	}
	return errors.Join(all...)
}

// byStatus handles problems of modules, which need not have a type: they are identified by the status (RFC 9457,
// 4.2.1).
func (p *Problem) byStatus() error {
	switch p.Status {
	case http.StatusBadRequest:
		return &apierrors.Invalid{Reason: p.Detail}
	case http.StatusNotFound:
		return &apierrors.NotFound{}
	case http.StatusConflict:
		return &apierrors.Conflict{Reason: p.Detail}
	}
	return nil
}

func writeProblem(w http.ResponseWriter, err error) {
	p := problemOf(err)
	w.Header().Set("Content-Type", problemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // fails if the client has disconnected
}
