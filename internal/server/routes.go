// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
)

type (
	none   struct{}
	byName struct {
		Name string `path:"name" doc:"Name of the resource"`
	}
	oneInput struct {
		byName
		Detail
	}
	byID struct {
		ID string `path:"id" doc:"Identity of the chain, or number of the change"`
	}
	byGeneration struct {
		Name       string `path:"name" doc:"Name of the resource"`
		Generation int64  `path:"generation" minimum:"1" doc:"metadata.generation of the version"`
	}
	// Writer is the author of a change.
	Writer struct {
		Owner string `query:"owner" default:"user" maxLength:"63" pattern:"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$" doc:"Owner of the resources: user, or a program that manages its own resources"`
		Force bool   `query:"force" doc:"Also change resources of other owners; they become this owner's"`
	}
	deleteInput struct {
		Conditional
		Writer
		Name   string `path:"name" doc:"Name of the resource"`
		DryRun bool   `query:"dryRun" doc:"Validate and report what would happen, change nothing"`
	}
	putInput struct {
		body
		Writer
		Conditional
		Preference
		Name   string `path:"name" doc:"Name of the resource"`
		DryRun bool   `query:"dryRun" doc:"Validate and report what would happen, change nothing"`
	}
	applyInput struct {
		body
		Writer
		Prune       bool `query:"prune" doc:"Delete all other resources of the owner; the list may then be empty"`
		DryRun      bool `query:"dryRun" doc:"Validate and report what would happen, change nothing"`
		Verify      bool `query:"verify" doc:"With dryRun: also have the kernel verify the chains that would be new; nothing is attached"`
		Measure     bool `query:"measure" doc:"With verify: also measure the modules that would change (costs), which takes the CPU for some hundred milliseconds each"`
		IfUnchanged bool `query:"ifUnchanged" doc:"Apply only if each resource still has the metadata.resourceVersion given; a resource without one must not exist"`
	}
	manyInput struct {
		body
		Writer
		DryRun bool `query:"dryRun" doc:"Validate and report what would happen, change nothing"`
	}
	setInput struct {
		body
		Writer
		Name string `path:"name" doc:"Name of the set"`
	}
	oneResource struct {
		ETag string // metadata.resourceVersion in quotes
		Body resource.Object
	}
)

// body is the request's body, which may be YAML. Errors in it are reported with the name of the resource.
type body struct {
	data      []byte
	mediaType string
	err       error
}

// maxAhead limits what is allocated for a body before it has arrived.
const maxAhead = 64 << 10

func (b *body) read(r *http.Request) {
	var data bytes.Buffer
	data.Grow(int(min(max(0, r.ContentLength), maxAhead)) + bytes.MinRead)
	_, b.err = data.ReadFrom(r.Body)
	b.data = data.Bytes()
	b.mediaType, _, _ = mime.ParseMediaType(r.Header.Get("Content-Type"))
}

// bytes returns the body if it is complete and has a type that can be decoded.
func (b *body) bytes() ([]byte, error) {
	if b.err != nil {
		return nil, fmt.Errorf("reading the request: %w", cutShort(b.err))
	}
	switch b.mediaType {
	case "application/json", "application/yaml":
		return b.data, nil
	}
	return nil, newProblem(typeInvalid, http.StatusUnsupportedMediaType, "Content-Type must be application/json or "+
		"application/yaml")
}

// cutShort keeps the errors for bodies that are too large; all others mean that the client did not send the whole body
// in time.
func cutShort(err error) error {
	if p := problemOf(err); p.Status == http.StatusRequestEntityTooLarge || p.Status == http.StatusServiceUnavailable {
		return p
	}
	return &apierrors.Invalid{Reason: "incomplete body: " + err.Error()}
}

// addRoutes registers every operation. Their documentation for clients is docs/openapi.yaml.
func (s *Server) addRoutes() {
	route(s, "GET", "/v1/status", "status", "Summary of the agent's state", s.status)
	route(s, "GET", "/v1/counts", "counts", "Counters of all chains and modules, which may be read every second",
		func(ctx context.Context, _ *none) (v1alpha1.NodeCounts, error) { return s.backend.Counts(ctx) })
	for _, kind := range resource.Kinds() {
		s.addKind(kind)
	}
	route(s, "PATCH", "/v1/sets/{name}/elements", "changeSet", "Add and delete elements of a set", s.changeSet)
	route(s, "GET", "/v1/chains", "listChains", "All attached chains", list(s.backend.Chains))
	route(s, "GET", "/v1/chains/{id}", "getChain", "One chain", s.chain)
	route(s, "GET", "/v1/packages", "listPackages", "All packages known to the node", list(s.backend.Packages))
	route(s, "GET", "/v1/packages/{name}", "getPackage", "One package", get(s.backend.Package))
	route(s, "POST", "/v1/packages", "pullPackage",
		"Pull a package from a registry, unless the node has it, if a key of the node has signed it",
		func(ctx context.Context, r *v1alpha1.PackageRequest) (v1alpha1.Package, error) {
			return s.backend.PullPackage(ctx, *r)
		})
	route(s, "DELETE", "/v1/packages", "removePackage", "Remove a package that its owner has had pulled",
		func(ctx context.Context, r *v1alpha1.PackageRequest) (v1alpha1.PackageRemoved, error) {
			return s.backend.RemovePackage(ctx, *r)
		})
	route(s, "POST", "/v1/apply", "apply", "Create or update resources: all of them or none", s.apply)
	route(s, "POST", "/v1/delete", "delete", "Delete resources: all of them or none", s.deleteMany)
	route(s, "GET", "/v1/changes", "listChanges", "What was changed, newest first",
		func(ctx context.Context, r *v1alpha1.ChangesRequest) ([]v1alpha1.ChangeRecord, error) {
			return s.backend.Changes(ctx, *r)
		})
	route(s, "GET", "/v1/changes/{id}", "getChange", "One change, with the resources before and after", s.change)
	route(s, "POST", "/v1/changes/{id}/revert", "revertChange",
		"Restore resources to the state before a change: all of them or none",
		func(ctx context.Context, r *v1alpha1.RevertRequest) (v1alpha1.ApplyResult, error) {
			return brief(s.backend.Revert(ctx, *r))
		})
	route(s, "GET", "/v1/drops", "drops", "The last packets that modules dropped, as these left them, oldest first",
		func(ctx context.Context, r *v1alpha1.DropsRequest) ([]v1alpha1.TracedPacket, error) {
			return s.backend.Drops(ctx, *r)
		})
	route(s, "GET", "/v1/explain", "explain", "Simulate what the modules of a service would do to a packet",
		func(ctx context.Context, r *v1alpha1.ExplainRequest) (v1alpha1.ExplainedPacket, error) {
			return s.backend.Explain(ctx, *r)
		})
	s.lines("/v1/events", "events", "Events of the node, oldest first, one JSON object per line",
		reflect.TypeFor[v1alpha1.EventsRequest](), s.events)
	s.lines("/v1/flows", "flows", "Flows recorded by modules, one JSON object per line",
		reflect.TypeFor[v1alpha1.FlowsRequest](), func(ctx context.Context, in any, send func(any) error) error {
			return s.backend.Flows(ctx, *in.(*v1alpha1.FlowsRequest), func(l v1alpha1.FlowLine) error { return send(&l) })
		})
	s.lines("/v1/history", "history", "Samples of traffic, drops and the agent, one JSON object per line",
		reflect.TypeFor[v1alpha1.HistoryRequest](), func(ctx context.Context, in any, send func(any) error) error {
			return s.backend.History(ctx, *in.(*v1alpha1.HistoryRequest),
				func(l v1alpha1.HistoryLine) error { return send(&l) })
		})
	s.lines("/v1/trace", "trace", "Trace of packets through chains, one JSON object per line",
		reflect.TypeFor[v1alpha1.TraceRequest](), func(ctx context.Context, in any, send func(any) error) error {
			return s.backend.Trace(ctx, *in.(*v1alpha1.TraceRequest), func(l v1alpha1.TraceLine) error { return send(&l) })
		})
	s.describeBodies()
}

// events sends events. A client that follows gets the beginning of the answer immediately, even if no event occurs for
// long.
func (s *Server) events(ctx context.Context, in any, send func(any) error) error {
	r := in.(*v1alpha1.EventsRequest)
	if r.Follow {
		if err := send(nil); err != nil {
			return err
		}
	}
	return s.backend.Events(ctx, *r, func(e v1alpha1.Event) error { return send(&e) })
}

// lines registers an operation that answers with one JSON object per line. Errors before the first line are problems;
// later ones are a line {"error": ...}. A nil line starts the answer.
func (s *Server) lines(path, id, summary string, in reflect.Type,
	all func(ctx context.Context, in any, send func(any) error) error) {
	op := huma.Operation{OperationID: id, Method: "GET", Path: path, Responses: map[string]*huma.Response{
		"200": {Description: "OK"}}, Summary: summary}
	s.handle(&op, in, func(w http.ResponseWriter, r *http.Request, in any) error {
		started := false
		out := json.NewEncoder(w)
		err := all(r.Context(), in, func(line any) error {
			if !started {
				w.Header().Set("Content-Type", "application/x-ndjson")
				started = true
			}
			if line != nil {
				if err := out.Encode(line); err != nil {
					return err
				}
			}
			return http.NewResponseController(w).Flush()
		})
		if err == nil && !started { // nothing is a list, too
			w.Header().Set("Content-Type", "application/x-ndjson")
		}
		if err == nil || !started {
			return err
		}
		_ = out.Encode(v1alpha1.HistoryLine{Error: problemOf(err).Detail})
		return nil
	})
}

// route registers one operation, which answers with an O.
func route[I, O any](s *Server, method, path, id, summary string, do func(context.Context, *I) (O, error)) {
	register(s, s.operation(method, path, id, summary, reflect.TypeFor[O]()),
		func(ctx context.Context, in *I) (any, error) { return do(ctx, in) })
}

// problem returns the response for an error, and logs internal errors.
func (s *Server) problem(err error, method, path string) *Problem {
	p := problemOf(err)
	if p.Type == typeInternal {
		s.log.Error("request failed", "method", method, "path", path, "error", err)
	}
	return p
}

// list is an operation that returns all objects of a kind.
func list[T any](all func(context.Context) ([]T, error)) func(context.Context, *none) ([]T, error) {
	return func(ctx context.Context, _ *none) ([]T, error) {
		got, err := all(ctx)
		if got == nil {
			got = []T{} // [] on the wire, not null
		}
		return got, err
	}
}

// get is an operation that returns one object by name.
func get[T any](one func(context.Context, string) (T, error)) func(context.Context, *byName) (T, error) {
	return func(ctx context.Context, in *byName) (T, error) { return one(ctx, in.Name) }
}

// status adds the conditions of the API's own listeners to those of the backend.
func (s *Server) status(ctx context.Context, _ *none) (v1alpha1.NodeStatus, error) {
	status, err := s.backend.Status(ctx)
	status.Conditions = append(status.Conditions, s.conditions()...)
	return status, err
}

// chain finds one chain among all, of which there are a few per service.
func (s *Server) chain(ctx context.Context, in *byID) (v1alpha1.Chain, error) {
	chains, err := s.backend.Chains(ctx)
	if err != nil {
		return v1alpha1.Chain{}, err
	}
	for _, c := range chains {
		if c.ID == in.ID {
			return c, nil
		}
	}
	return v1alpha1.Chain{}, &apierrors.NotFound{Kind: "Chain", Name: in.ID}
}

// change returns one change. A value that is not a number is not found.
func (s *Server) change(ctx context.Context, in *byID) (v1alpha1.ChangeRecord, error) {
	n, err := strconv.ParseInt(in.ID, 10, 64)
	if err != nil {
		return v1alpha1.ChangeRecord{}, &apierrors.NotFound{Kind: "Change", Name: in.ID}
	}
	return s.backend.Change(ctx, n)
}

func (s *Server) changeSet(ctx context.Context, in *setInput) (v1alpha1.SetChanged, error) {
	data, err := in.bytes()
	if err != nil {
		return v1alpha1.SetChanged{}, err
	}
	change, err := resource.DecodeSetChange(data)
	if err != nil {
		return v1alpha1.SetChanged{}, err
	}
	return s.backend.ChangeSet(ctx, resource.SetRequest{Name: in.Name, By: in.by(), SetChange: change})
}

// apply changes resources together. Without resources it requires prune, so that an empty file deletes nothing by
// mistake.
func (s *Server) apply(ctx context.Context, in *applyInput) (v1alpha1.ApplyResult, error) {
	r, err := in.request(in.Writer, in.DryRun)
	if err != nil {
		return v1alpha1.ApplyResult{}, err
	}
	if in.Verify && !in.DryRun {
		return v1alpha1.ApplyResult{}, &apierrors.Invalid{Field: "verify", Reason: "is for a dry run: set dryRun, too"}
	}
	if in.Measure && !in.Verify {
		return v1alpha1.ApplyResult{}, &apierrors.Invalid{Field: "measure", Reason: "needs verify: set it, too"}
	}
	r.Prune, r.IfUnchanged, r.Verify, r.Measure = in.Prune, in.IfUnchanged, in.Verify, in.Measure
	if len(r.Resources) == 0 && !r.Prune {
		return v1alpha1.ApplyResult{}, errNoResource
	}
	return brief(s.backend.Apply(ctx, r))
}

// brief removes what the client has sent from the answer to a change; the answer to a dry run keeps it.
func brief(result v1alpha1.ApplyResult, err error) (v1alpha1.ApplyResult, error) {
	if !result.DryRun {
		result.Changes = resource.WithoutDocuments(result.Changes)
	}
	return result, err
}

var errNoResource = &apierrors.Invalid{Reason: "the request contains no resource"}

func (w Writer) by() resource.Writer { return resource.Writer{Owner: w.Owner, Force: w.Force} }

// request decodes the resources of a body.
func (b *body) request(by Writer, dryRun bool) (resource.Request, error) {
	data, err := b.bytes()
	if err != nil {
		return resource.Request{}, err
	}
	all, err := resource.Decode(data)
	return resource.Request{Resources: all, By: by.by(), DryRun: dryRun}, err
}

func (s *Server) deleteMany(ctx context.Context, in *manyInput) (v1alpha1.ApplyResult, error) {
	data, err := in.bytes()
	if err != nil {
		return v1alpha1.ApplyResult{}, err
	}
	refs, err := resource.DecodeRefs(data)
	if err != nil {
		return v1alpha1.ApplyResult{}, err
	}
	return brief(s.backend.Apply(ctx, resource.Request{Remove: refs, By: in.by(), DryRun: in.DryRun}))
}
