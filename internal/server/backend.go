// SPDX-License-Identifier: Apache-2.0

// Package server is the REST API of the agent: routes, the OpenAPI document, strict decoding, problems, metrics, and the
// listeners. It knows the agent only as a Backend and never touches the kernel.
package server

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// Backend is what the API needs of the agent. Its errors are those of package fault; all others are the agent's own fault.
// It may be called from several goroutines.
type Backend interface {
	// Apply creates or updates all resources of the request, or none of them.
	Apply(ctx context.Context, r Request) (v1alpha1.ApplyResult, error)
	// Delete deletes all of refs, or none of them. An unknown one is *fault.NotFound.
	Delete(ctx context.Context, refs []Ref, dryRun bool) (v1alpha1.ApplyResult, error)

	// Lists are sorted by name; resources carry their status.
	Modules(ctx context.Context) ([]v1alpha1.Module, error)
	Module(ctx context.Context, name string) (v1alpha1.Module, error)
	Services(ctx context.Context) ([]v1alpha1.Service, error)
	Service(ctx context.Context, name string) (v1alpha1.Service, error)
	// VirtualServices are also those that resolvers found.
	VirtualServices(ctx context.Context) ([]v1alpha1.VirtualService, error)
	VirtualService(ctx context.Context, name string) (v1alpha1.VirtualService, error)
	// Models in a list are without their documents.
	Models(ctx context.Context) ([]v1alpha1.Model, error)
	Model(ctx context.Context, name string) (v1alpha1.Model, error)
	// ModelVersion is a model as it was in an earlier generation that is kept.
	ModelVersion(ctx context.Context, name string, generation int64) (v1alpha1.Model, error)
	Chains(ctx context.Context) ([]v1alpha1.Chain, error)
	Packages(ctx context.Context) ([]v1alpha1.Package, error)
	Package(ctx context.Context, name string) (v1alpha1.Package, error)
	Status(ctx context.Context) (v1alpha1.NodeStatus, error)

	// ServeModule answers with what the module's control plane offers. The path is the one below /v1/modules/<name>, beginning
	// with a slash. *fault.NotFound, and nothing is answered, if there is no such module or it offers nothing.
	ServeModule(w http.ResponseWriter, r *http.Request, name string) error
	// Trace tells what modules do to packets, until ctx ends or the request's limits are reached.
	Trace(ctx context.Context, r v1alpha1.TraceRequest, tell func(v1alpha1.TracedPacket) error) error
	// Collector gives the agent's and the modules' metrics.
	Collector() prometheus.Collector
}

// Request is a set of resources to apply together. They are valid by schema, have their defaults, and no status.
type Request struct {
	Modules         []v1alpha1.Module
	Services        []v1alpha1.Service
	VirtualServices []v1alpha1.VirtualService
	Models          []v1alpha1.Model
	versions        map[Ref]string // metadata.resourceVersion of those that have one
	IfUnchanged     bool           // only if each resource is in the version that the request names, or does not exist if it names none
	DryRun          bool           // work out and answer what would happen, without effect
}

// Ref names a resource.
type Ref struct {
	Kind string `json:"kind" enum:"Module,Service,VirtualService,Model" doc:"Kind of resource"`
	Name string `json:"name" minLength:"1" doc:"Its name"`

	ResourceVersion string `json:"resourceVersion,omitempty" doc:"Delete only if metadata.resourceVersion is still this"`
}
