// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
)

// addKind registers the routes of a kind.
func (s *Server) addKind(kind resource.Kind) {
	n := kind.Names()
	all, one := "/v1/"+n.Plural, "/v1/"+n.Plural+"/{name}"
	listed := "All " + n.Words + "s"
	if n.ListNote != "" {
		listed += ", " + n.ListNote
	}
	aWord := article(n.Words) + " " + n.Words
	op := s.operation(http.MethodGet, all, "list"+n.Kind+"s", listed, reflect.SliceOf(kind.Type()))
	register(s, op, func(ctx context.Context, _ *none) (any, error) { return s.list(ctx, kind) })
	op = s.operation(http.MethodGet, one, "get"+n.Kind, "One "+n.Words, kind.Type())
	op.Responses["200"].Headers = map[string]*huma.Header{"ETag": {Schema: &huma.Schema{Type: huma.TypeString,
		Description: "metadata.resourceVersion in quotes, for If-Match"}}}
	register(s, op, func(ctx context.Context, in *oneInput) (any, error) {
		if in.isMinimal() {
			return withVersion(s.backend.Brief(ctx, kind, in.Name))
		}
		return withVersion(s.backend.Get(ctx, kind, in.Name))
	})
	if kind.Archives() {
		path := one + "/versions/{generation}"
		summary := "An earlier version of " + aWord + ", for a rollback"
		op := s.operation(http.MethodGet, path, "get"+n.Kind+"Version", summary, kind.Type())
		register(s, op, func(ctx context.Context, in *byGeneration) (any, error) {
			return s.backend.Version(ctx, kind, in.Name, in.Generation)
		})
	}
	op = s.operation(http.MethodPut, one, "put"+n.Kind, "Create or update "+aWord, reflect.TypeFor[v1alpha1.ApplyResult]())
	answer, schemas := op.Responses["200"].Content["application/json"], s.doc.Components.Schemas
	answer.Schema = &huma.Schema{OneOf: []*huma.Schema{answer.Schema, schemas.Schema(kind.Type(), true, n.Kind)}}
	op.Responses["200"].Description = "OK: the changes, or the resource if that is preferred"
	register(s, op, s.put(kind))
	route(s, "DELETE", one, "delete"+n.Kind, "Delete "+aWord, s.delete(n.Kind))
}

func article(word string) string {
	if strings.ContainsAny(word[:1], "aeiou") {
		return "an"
	}
	return "a"
}

// operation describes a route whose answer is a t.
func (s *Server) operation(method, path, id, summary string, t reflect.Type) huma.Operation {
	schema := s.doc.Components.Schemas.Schema(t, true, id+"Response")
	content := map[string]*huma.MediaType{"application/json": {Schema: schema}}
	return huma.Operation{OperationID: id, Method: method, Path: path, Summary: summary,
		Responses: map[string]*huma.Response{"200": {Description: "OK", Content: content}}}
}

// list returns all resources of a kind, with their versions unless the list omits fields.
func (s *Server) list(ctx context.Context, kind resource.Kind) ([]resource.Object, error) {
	got, err := s.backend.List(ctx, kind)
	for _, o := range got {
		if !kind.Trim(o) {
			o.Meta().ResourceVersion = resource.Version(o)
		}
	}
	if got == nil {
		got = []resource.Object{} // [] on the wire, not null
	}
	return got, err
}

// withVersion returns one resource with its version, which is its entity tag.
func withVersion(got resource.Object, err error) (*oneResource, error) {
	if err != nil {
		return nil, err
	}
	v := resource.Version(got)
	got.Meta().ResourceVersion = v
	return &oneResource{ETag: `"` + v + `"`, Body: got}, nil
}

// put applies the resource that the path names, and answers with the change, or with the resource if it is still in the
// state that this request has set. If-Match and If-None-Match are converted to its resourceVersion.
func (s *Server) put(kind resource.Kind) func(context.Context, *putInput) (any, error) {
	return func(ctx context.Context, in *putInput) (any, error) {
		r, err := in.request(in.Writer, in.DryRun)
		if err != nil {
			return nil, err
		}
		refs := resource.Refs(r.Resources)
		if len(refs) != 1 || refs[0] != (resource.Ref{Kind: kind.Names().Kind, Name: in.Name}) {
			reason := fmt.Sprintf("the body must be the %s %s, as the path says", kind.Names().Kind, in.Name)
			return nil, &apierrors.Invalid{Field: "metadata.name", Reason: reason}
		}
		version, err := in.version()
		if err != nil {
			return nil, err
		}
		r.IfUnchanged, r.Resources[0].Meta().ResourceVersion = version != "", version
		result, err := brief(s.backend.Apply(ctx, r))
		if err != nil || in.DryRun || !in.wantsResource() {
			return result, err
		}
		now, err := s.backend.Brief(ctx, kind, in.Name)
		if err != nil || !sameContent(kind, r.Resources[0], now) { // another client was faster
			return result, nil
		}
		return withVersion(now, nil)
	}
}

// sameContent reports whether a resource equals the one that a client has sent.
func sameContent(kind resource.Kind, sent, now resource.Object) bool {
	sent = kind.Copy(sent)
	sent.Meta().Generation = now.Meta().Generation
	return resource.Version(sent) == resource.Version(now)
}

// delete deletes the resource that the path names, if its version matches If-Match.
func (s *Server) delete(kind string) func(context.Context, *deleteInput) (v1alpha1.ApplyResult, error) {
	return func(ctx context.Context, in *deleteInput) (v1alpha1.ApplyResult, error) {
		version, err := in.version()
		if err != nil {
			return v1alpha1.ApplyResult{}, err
		}
		refs := []resource.Ref{{Kind: kind, Name: in.Name, ResourceVersion: version}}
		return brief(s.backend.Apply(ctx, resource.Request{Remove: refs, By: in.by(), DryRun: in.DryRun}))
	}
}

// describeBodies adds the bodies that huma does not read to its document.
func (s *Server) describeBodies() {
	doc := s.doc
	any := &huma.Schema{Discriminator: &huma.Discriminator{PropertyName: "kind", Mapping: map[string]string{}}}
	for _, kind := range resource.Kinds() {
		n, schema := kind.Names(), doc.Components.Schemas.Schema(kind.Type(), true, "")
		any.OneOf = append(any.OneOf, schema)
		any.Discriminator.Mapping[n.Kind] = schema.Ref
		doc.Paths["/v1/"+n.Plural+"/{name}"].Put.RequestBody = required(schema)
	}
	refs := doc.Components.Schemas.Schema(reflect.TypeFor[[]resource.Ref](), true, "")
	doc.Paths["/v1/apply"].Post.RequestBody = required(&huma.Schema{Type: huma.TypeArray, Items: any})
	doc.Paths["/v1/delete"].Post.RequestBody = required(refs)
	doc.Paths["/v1/sets/{name}/elements"].Patch.RequestBody = required(doc.Components.Schemas.Schema(
		reflect.TypeFor[v1alpha1.SetChange](), true, ""))
}

// required is a body in one of the two accepted notations.
func required(schema *huma.Schema) *huma.RequestBody {
	return &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: schema},
		"application/yaml": {Schema: schema},
	}}
}
