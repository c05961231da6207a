// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
)

// agent is a client of the agent's API.
type agent struct {
	client *client.Client
	socket string
}

func newAgent(socket string) agent { return agent{client.New(socket), socket} }

// ref identifies a resource.
type ref struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// call makes a request to the agent. It returns a *refused for an error response.
func (a agent) call(ctx context.Context, method, path string, in, out any) error {
	err := a.client.Call(ctx, method, path, in, out)
	var status *client.StatusError
	if errors.As(err, &status) {
		return &refused{status.Status, status.Detail()}
	}
	return err
}

// owner is the owner of the integration's resources: other clients can change them only with force.
const owner = "oakestra"

// apply creates or updates all resources in one transaction. It returns warnings, or an *unconfirmed if the agent may
// have applied them nevertheless.
func (a agent) apply(ctx context.Context, services []v1.Service, modules []v1.Module) ([]string, error) {
	return a.applyBy(ctx, "owner="+owner, services, modules)
}

// applyBy applies all resources in one transaction. An error that leaves open whether the agent applied them is an
// *unconfirmed; a response below 500 and a failed connect are definite.
func (a agent) applyBy(ctx context.Context, writer string, services []v1.Service,
	modules []v1.Module) ([]string, error) {
	var all []any
	for _, s := range services {
		all = append(all, s)
	}
	for _, m := range modules {
		all = append(all, m)
	}
	if len(all) == 0 {
		return nil, nil
	}
	var result v1.ApplyResult
	err := a.call(ctx, http.MethodPost, "/v1/apply?"+writer, all, &result)
	var no *refused
	var unreached *client.DialError
	if err == nil || errors.As(err, &no) && no.status < http.StatusInternalServerError || errors.As(err, &unreached) {
		return result.Warnings, err
	}
	return nil, &unconfirmed{err}
}

// delete removes all resources in one transaction.
func (a agent) delete(ctx context.Context, refs []ref) error {
	return a.call(ctx, http.MethodPost, "/v1/delete?owner="+owner, refs, nil)
}

func (a agent) modules(ctx context.Context) (all []v1.Module, err error) {
	return all, a.call(ctx, http.MethodGet, "/v1/modules", nil, &all)
}

func (a agent) module(ctx context.Context, name string) (m v1.Module, err error) {
	return m, a.call(ctx, http.MethodGet, "/v1/modules/"+name, nil, &m)
}

func (a agent) chains(ctx context.Context) (all []v1.Chain, err error) {
	return all, a.call(ctx, http.MethodGet, "/v1/chains", nil, &all)
}

func (a agent) virtualService(ctx context.Context, name string) (s v1.VirtualService, err error) {
	return s, a.call(ctx, http.MethodGet, "/v1/virtualservices/"+name, nil, &s)
}

func (a agent) services(ctx context.Context) (all []v1.Service, err error) {
	return all, a.call(ctx, http.MethodGet, "/v1/services", nil, &all)
}

// serve forwards a request to a path of a module, and its response to the client.
func (a agent) serve(w http.ResponseWriter, r *http.Request, module, path string) {
	proxy := httputil.ReverseProxy{
		Transport: client.Unix(a.socket),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", "kerb"
			p.Out.URL.Path, p.Out.URL.RawPath = "/v1/modules/"+module+"/"+path, ""
		},
		ModifyResponse: plainProblem,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, "the agent does not answer: "+err.Error(), http.StatusInternalServerError)
		},
	}
	proxy.ServeHTTP(w, r)
}

// plainProblem converts a problem (RFC 9457), with which the agent rejects a request, to plain text: clients of
// Oakestra expect plain text.
func plainProblem(r *http.Response) error {
	if r.Header.Get("Content-Type") != "application/problem+json" {
		return nil
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	detail := (&client.StatusError{Status: r.StatusCode, Body: text}).Detail() + "\n"
	r.Body.Close()
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(detail)), int64(len(detail))
	r.Header.Set("Content-Type", "text/plain; charset=utf-8")
	r.Header.Set("Content-Length", fmt.Sprint(len(detail)))
	return nil
}

// ask gets JSON from a path of a module. It returns a *refused for an error response of the agent or the module.
func (a agent) ask(ctx context.Context, module, path string, out any) error {
	return a.call(ctx, http.MethodGet, "/v1/modules/"+module+path, nil, out)
}

// refused is a response of the agent other than success.
type refused struct {
	status int
	detail string
}

func (e *refused) Error() string { return e.detail }

// unconfirmed is the error of a change that the agent may have made, or may still make: there was no response, or an
// internal error of the agent.
type unconfirmed struct{ cause error }

func (e *unconfirmed) Error() string {
	return fmt.Sprintf("the agent did not confirm the change; if it was made, it is undone: %v", e.cause)
}

func (e *unconfirmed) Unwrap() error { return e.cause }

// isMissing reports whether err is the agent's response that a resource does not exist.
func isMissing(err error) bool {
	var r *refused
	return errors.As(err, &r) && r.status == http.StatusNotFound
}

// isConflict reports whether err is the agent's response that the state of a resource, such as another owner,
// conflicts.
func isConflict(err error) bool {
	var r *refused
	return errors.As(err, &r) && r.status == http.StatusConflict
}

// invalid is an invalid field of a request.
type invalid struct{ field, reason string }

func (e *invalid) Error() string { return e.field + ": " + e.reason }
