// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/fault"
)

type (
	none   struct{}
	byName struct {
		Name string `path:"name" doc:"Name of the resource"`
	}
	byID struct {
		ID string `path:"id" doc:"Identity of the chain"`
	}
	byGeneration struct {
		Name       string `path:"name" doc:"Name of the resource"`
		Generation int64  `path:"generation" minimum:"1" doc:"metadata.generation of the version"`
	}
	deleteInput struct {
		Conditional
		Name   string `path:"name" doc:"Name of the resource"`
		DryRun bool   `query:"dryRun" doc:"Validate and report what would happen, change nothing"`
	}
	putInput struct {
		body
		Conditional
		Name   string `path:"name" doc:"Name of the resource"`
		DryRun bool   `query:"dryRun" doc:"Validate and report what would happen, change nothing"`
	}
	applyInput struct {
		body
		DryRun      bool `query:"dryRun" doc:"Validate and report what would happen, change nothing"`
		IfUnchanged bool `query:"ifUnchanged" doc:"Apply only if each resource still has the metadata.resourceVersion given; a resource without one must not exist"`
	}
	manyInput struct {
		body
		DryRun bool `query:"dryRun" doc:"Validate and report what would happen, change nothing"`
	}
	answer[T any]   struct{ Body T }
	resource[T any] struct {
		ETag string `header:"ETag" doc:"metadata.resourceVersion in quotes, for If-Match"`
		Body T
	}
)

// body is the request's body, read here and not by huma: it may be YAML, and mistakes in it are told with the name of the
// resource.
type body struct {
	data      []byte
	mediaType string
	err       error
}

// Resolve reads the body.
func (b *body) Resolve(ctx huma.Context) []error {
	b.data, b.err = io.ReadAll(ctx.BodyReader())
	b.mediaType, _, _ = mime.ParseMediaType(ctx.Header("Content-Type"))
	return nil
}

var _ huma.Resolver = (*body)(nil)

func (b *body) bytes() ([]byte, error) {
	if b.err != nil {
		return nil, fmt.Errorf("reading the request: %w", cutShort(b.err))
	}
	switch b.mediaType {
	case "application/json", "application/yaml":
		return b.data, nil
	}
	return nil, newProblem(typeInvalid, http.StatusUnsupportedMediaType, "Content-Type must be application/json or application/yaml")
}

// cutShort keeps the errors for bodies that are too large; all others mean that the client did not send it all in time.
func cutShort(err error) error {
	if p := problemOf(err); p.Status == http.StatusRequestEntityTooLarge || p.Status == http.StatusServiceUnavailable {
		return p
	}
	return &fault.Invalid{Reason: "incomplete body: " + err.Error()}
}

func (s *Server) addRoutes() {
	route(s, "GET", "/v1/status", "status", "Summary of the agent's state", s.status)
	route(s, "GET", "/v1/modules", "listModules", "All modules", listVersions(s.backend.Modules, (*v1alpha1.Module).Meta, moduleVersion))
	routeResource(s, "/v1/modules/{name}", "getModule", "One module", s.backend.Module, (*v1alpha1.Module).Meta, moduleVersion)
	route(s, "PUT", "/v1/modules/{name}", "putModule", "Create or update a module", s.put(v1alpha1.KindModule))
	route(s, "DELETE", "/v1/modules/{name}", "deleteModule", "Delete a module", s.delete(v1alpha1.KindModule))
	route(s, "GET", "/v1/services", "listServices", "All services", listVersions(s.backend.Services, (*v1alpha1.Service).Meta, serviceVersion))
	routeResource(s, "/v1/services/{name}", "getService", "One service", s.backend.Service, (*v1alpha1.Service).Meta, serviceVersion)
	route(s, "PUT", "/v1/services/{name}", "putService", "Create or update a service", s.put(v1alpha1.KindService))
	route(s, "DELETE", "/v1/services/{name}", "deleteService", "Delete a service", s.delete(v1alpha1.KindService))
	route(s, "GET", "/v1/virtualservices", "listVirtualServices", "All virtual services, including those found by resolvers", listVersions(s.backend.VirtualServices, (*v1alpha1.VirtualService).Meta, virtualVersion))
	routeResource(s, "/v1/virtualservices/{name}", "getVirtualService", "One virtual service", s.backend.VirtualService, (*v1alpha1.VirtualService).Meta, virtualVersion)
	route(s, "PUT", "/v1/virtualservices/{name}", "putVirtualService", "Create or update a virtual service", s.put(v1alpha1.KindVirtualService))
	route(s, "DELETE", "/v1/virtualservices/{name}", "deleteVirtualService", "Delete a virtual service", s.delete(v1alpha1.KindVirtualService))
	route(s, "GET", "/v1/models", "listModels", "All models, without their documents", list(s.backend.Models))
	routeResource(s, "/v1/models/{name}", "getModel", "One model", s.backend.Model, (*v1alpha1.Model).Meta, modelVersion)
	route(s, "GET", "/v1/models/{name}/versions/{generation}", "getModelVersion", "An earlier version of a model, for a rollback", s.modelVersion)
	route(s, "PUT", "/v1/models/{name}", "putModel", "Create or update a model", s.put(v1alpha1.KindModel))
	route(s, "DELETE", "/v1/models/{name}", "deleteModel", "Delete a model", s.delete(v1alpha1.KindModel))
	route(s, "GET", "/v1/chains", "listChains", "All attached chains", list(s.backend.Chains))
	route(s, "GET", "/v1/chains/{id}", "getChain", "One chain", s.chain)
	route(s, "GET", "/v1/packages", "listPackages", "All packages known to the node", list(s.backend.Packages))
	route(s, "GET", "/v1/packages/{name}", "getPackage", "One package", get(s.backend.Package))
	route(s, "POST", "/v1/apply", "apply", "Create or update resources: all of them or none", s.apply)
	route(s, "POST", "/v1/delete", "delete", "Delete resources: all of them or none", s.deleteMany)
	huma.Register(s.api, huma.Operation{OperationID: "trace", Method: "GET", Path: "/v1/trace", Summary: "Trace of packets through chains, one JSON object per line"}, s.trace)
	describeBodies(s.api.OpenAPI())
}

// trace streams. Errors before the first packet are problems; later ones are a line {"error": ...}.
func (s *Server) trace(_ context.Context, r *v1alpha1.TraceRequest) (*huma.StreamResponse, error) {
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		started := false
		out := json.NewEncoder(ctx.BodyWriter())
		err := s.backend.Trace(ctx.Context(), *r, func(p v1alpha1.TracedPacket) error {
			if !started {
				ctx.SetHeader("Content-Type", "application/x-ndjson")
				ctx.SetStatus(http.StatusOK)
				started = true
			}
			if err := out.Encode(p); err != nil {
				return err
			}
			if f, ok := ctx.BodyWriter().(http.Flusher); ok {
				f.Flush()
			}
			return nil
		})
		if err == nil {
			return
		}
		p := problemOf(err)
		if !started {
			ctx.SetHeader("Content-Type", "application/problem+json")
			ctx.SetStatus(p.Status)
			_ = out.Encode(p)
			return
		}
		_ = out.Encode(map[string]string{"error": p.Detail})
	}}, nil
}

// route registers one operation. Errors become problems.
func route[I, O any](s *Server, method, path, id, summary string, do func(context.Context, *I) (O, error)) {
	op := huma.Operation{OperationID: id, Method: method, Path: path, Summary: summary}
	huma.Register(s.api, op, func(ctx context.Context, in *I) (*answer[O], error) {
		out, err := do(ctx, in)
		if err != nil {
			return nil, s.problem(err, method, path)
		}
		return &answer[O]{out}, nil
	})
}

// routeResource registers reading a resource: it is answered with its version.
func routeResource[T any](s *Server, path, id, summary string, one func(context.Context, string) (T, error), meta func(*T) *v1alpha1.ObjectMeta, version func(*T) string) {
	op := huma.Operation{OperationID: id, Method: http.MethodGet, Path: path, Summary: summary}
	huma.Register(s.api, op, func(ctx context.Context, in *byName) (*resource[T], error) {
		got, err := one(ctx, in.Name)
		if err != nil {
			return nil, s.problem(err, http.MethodGet, path)
		}
		v := version(&got)
		meta(&got).ResourceVersion = v
		return &resource[T]{ETag: `"` + v + `"`, Body: got}, nil
	})
}

// problem is what is answered for an error; the log has those that are the agent's own fault.
func (s *Server) problem(err error, method, path string) *Problem {
	p := problemOf(err)
	if p.Type == typeInternal {
		s.log.Error("request failed", "method", method, "path", path, "error", err)
	}
	return p
}

// listVersions is list with the version of each resource.
func listVersions[T any](all func(context.Context) ([]T, error), meta func(*T) *v1alpha1.ObjectMeta, version func(*T) string) func(context.Context, *none) ([]T, error) {
	return list(func(ctx context.Context) ([]T, error) {
		got, err := all(ctx)
		for i := range got {
			meta(&got[i]).ResourceVersion = version(&got[i])
		}
		return got, err
	})
}

func list[T any](all func(context.Context) ([]T, error)) func(context.Context, *none) ([]T, error) {
	return func(ctx context.Context, _ *none) ([]T, error) {
		got, err := all(ctx)
		if got == nil {
			got = []T{} // [] on the wire, not null
		}
		return got, err
	}
}

func get[T any](one func(context.Context, string) (T, error)) func(context.Context, *byName) (T, error) {
	return func(ctx context.Context, in *byName) (T, error) { return one(ctx, in.Name) }
}

func (s *Server) status(ctx context.Context, _ *none) (v1alpha1.NodeStatus, error) {
	status, err := s.backend.Status(ctx)
	status.Conditions = append(status.Conditions, s.conditions()...)
	return status, err
}

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
	return v1alpha1.Chain{}, &fault.NotFound{Kind: "Chain", Name: in.ID}
}

func (s *Server) modelVersion(ctx context.Context, in *byGeneration) (v1alpha1.Model, error) {
	return s.backend.ModelVersion(ctx, in.Name, in.Generation)
}

func (s *Server) put(kind string) func(context.Context, *putInput) (v1alpha1.ApplyResult, error) {
	return func(ctx context.Context, in *putInput) (v1alpha1.ApplyResult, error) {
		r, err := in.request(in.DryRun)
		if err != nil {
			return v1alpha1.ApplyResult{}, err
		}
		ref := Ref{Kind: kind, Name: in.Name}
		if refs := r.Refs(); len(refs) != 1 || refs[0] != ref {
			return v1alpha1.ApplyResult{}, &fault.Invalid{Field: "metadata.name", Reason: fmt.Sprintf("the body must be the %s %s, as the path says", kind, in.Name)}
		}
		version, err := in.version()
		if err != nil {
			return v1alpha1.ApplyResult{}, err
		}
		r.IfUnchanged, r.versions = version != "", map[Ref]string{ref: version}
		return s.backend.Apply(ctx, r)
	}
}

func (s *Server) apply(ctx context.Context, in *applyInput) (v1alpha1.ApplyResult, error) {
	r, err := in.request(in.DryRun)
	if err != nil {
		return v1alpha1.ApplyResult{}, err
	}
	r.IfUnchanged = in.IfUnchanged
	return s.backend.Apply(ctx, r)
}

func (b *body) request(dryRun bool) (Request, error) {
	data, err := b.bytes()
	if err != nil {
		return Request{}, err
	}
	r, err := Decode(data)
	r.DryRun = dryRun
	if err == nil && len(r.Refs()) == 0 {
		err = &fault.Invalid{Reason: "the request contains no resource"}
	}
	return r, err
}

func (s *Server) delete(kind string) func(context.Context, *deleteInput) (v1alpha1.ApplyResult, error) {
	return func(ctx context.Context, in *deleteInput) (v1alpha1.ApplyResult, error) {
		version, err := in.version()
		if err != nil {
			return v1alpha1.ApplyResult{}, err
		}
		return s.backend.Delete(ctx, []Ref{{Kind: kind, Name: in.Name, ResourceVersion: version}}, in.DryRun)
	}
}

func (s *Server) deleteMany(ctx context.Context, in *manyInput) (v1alpha1.ApplyResult, error) {
	data, err := in.bytes()
	if err != nil {
		return v1alpha1.ApplyResult{}, err
	}
	refs, err := decodeRefs(data)
	if err != nil {
		return v1alpha1.ApplyResult{}, err
	}
	return s.backend.Delete(ctx, refs, in.DryRun)
}

// describeBodies puts the bodies that are not read by huma into its document.
func describeBodies(doc *huma.OpenAPI) {
	schema := func(t reflect.Type) *huma.Schema { return doc.Components.Schemas.Schema(t, true, "") }
	module, service := schema(reflect.TypeFor[v1alpha1.Module]()), schema(reflect.TypeFor[v1alpha1.Service]())
	virtual, model := schema(reflect.TypeFor[v1alpha1.VirtualService]()), schema(reflect.TypeFor[v1alpha1.Model]())
	resource := &huma.Schema{
		OneOf: []*huma.Schema{module, service, virtual, model},
		Discriminator: &huma.Discriminator{
			PropertyName: "kind",
			Mapping: map[string]string{v1alpha1.KindModule: module.Ref, v1alpha1.KindService: service.Ref,
				v1alpha1.KindVirtualService: virtual.Ref, v1alpha1.KindModel: model.Ref},
		},
	}
	doc.Paths["/v1/modules/{name}"].Put.RequestBody = required(module)
	doc.Paths["/v1/services/{name}"].Put.RequestBody = required(service)
	doc.Paths["/v1/virtualservices/{name}"].Put.RequestBody = required(virtual)
	doc.Paths["/v1/models/{name}"].Put.RequestBody = required(model)
	doc.Paths["/v1/apply"].Post.RequestBody = required(&huma.Schema{Type: huma.TypeArray, Items: resource})
	doc.Paths["/v1/delete"].Post.RequestBody = required(schema(reflect.TypeFor[[]Ref]()))
}

func required(schema *huma.Schema) *huma.RequestBody {
	return &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: schema},
		"application/yaml": {Schema: schema},
	}}
}
