// SPDX-License-Identifier: Apache-2.0

// Package server is the REST API of the agent: routes, the OpenAPI document, strict decoding, problems, metrics, and
// the listeners. It knows the agent only as a Backend and never touches the kernel.
package server

import (
	"context"
	"net/http"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/internal/resource"
)

// Backend is what the API needs of the agent. Its errors are those of package apierrors; all others are internal
// errors. It may be called from several goroutines.
type Backend interface {
	// Apply creates, updates and deletes all resources of the request, or none of them. Changes have the resources before
	// and after. An unknown one to delete is *apierrors.NotFound.
	Apply(ctx context.Context, r resource.Request) (v1alpha1.ApplyResult, error)

	// Changes returns records of changes, newest first and without before, after and steps; Change returns one.
	// *apierrors.NotFound if it is not kept.
	Changes(ctx context.Context, r v1alpha1.ChangesRequest) ([]v1alpha1.ChangeRecord, error)
	Change(ctx context.Context, number int64) (v1alpha1.ChangeRecord, error)
	// Revert makes the resources of a change what they were before it: all of them or none.
	Revert(ctx context.Context, r v1alpha1.RevertRequest) (v1alpha1.ApplyResult, error)

	// Events passes on what has happened, and what happens until ctx ends if the request follows.
	Events(ctx context.Context, r v1alpha1.EventsRequest, send func(v1alpha1.Event) error) error
	// Flows passes on flows, and with r.Follow those that follow until ctx ends. *apierrors.Conflict if no module records
	// them.
	Flows(ctx context.Context, r v1alpha1.FlowsRequest, send func(v1alpha1.FlowLine) error) error
	// History passes on samples: those of the past, or new ones until ctx ends. *apierrors.Conflict if there are none.
	History(ctx context.Context, r v1alpha1.HistoryRequest, send func(v1alpha1.HistoryLine) error) error

	// ChangeSet adds and deletes elements of a set. An unknown one is *apierrors.NotFound.
	ChangeSet(ctx context.Context, r resource.SetRequest) (v1alpha1.SetChanged, error)

	// List returns all resources of a kind with their status, sorted by name. They may be without what lists leave out.
	List(ctx context.Context, kind resource.Kind) ([]resource.Object, error)
	// Get returns one. *apierrors.NotFound if there is none.
	Get(ctx context.Context, kind resource.Kind, name string) (resource.Object, error)
	// Brief is Get without what lists leave out. It asks the kernel for little.
	Brief(ctx context.Context, kind resource.Kind, name string) (resource.Object, error)
	// Version returns a resource as it was in an earlier generation that is kept.
	Version(ctx context.Context, kind resource.Kind, name string, generation int64) (resource.Object, error)

	// Lists are sorted by name.
	Chains(ctx context.Context) ([]v1alpha1.Chain, error)
	Packages(ctx context.Context) ([]v1alpha1.Package, error)
	Package(ctx context.Context, name string) (v1alpha1.Package, error)
	// PullPackage puts a package of a registry into the node's store, unless it is there. *apierrors.NotFound if the
	// registry has none, *apierrors.Rejected if the node does not accept it, *apierrors.Unavailable if it may later.
	PullPackage(ctx context.Context, r v1alpha1.PackageRequest) (v1alpha1.Package, error)
	// RemovePackage removes what its owner has pulled. *apierrors.Conflict if a module uses it, or another has pulled it.
	RemovePackage(ctx context.Context, r v1alpha1.PackageRequest) (v1alpha1.PackageRemoved, error)
	Status(ctx context.Context) (v1alpha1.NodeStatus, error)
	Counts(ctx context.Context) (v1alpha1.NodeCounts, error)

	// ServeModule answers with what the module's control plane offers. The path is the one below /v1/modules/<name>,
	// beginning with a slash. *apierrors.NotFound, and nothing is answered, if there is no such module or it offers
	// nothing.
	ServeModule(w http.ResponseWriter, r *http.Request, name string) error
	// Trace reports what modules do to packets, until ctx ends or the request's limits are reached.
	Trace(ctx context.Context, r v1alpha1.TraceRequest, send func(v1alpha1.TraceLine) error) error
	// Drops returns the last packets that modules dropped, oldest first: a sample if there were many.
	Drops(ctx context.Context, r v1alpha1.DropsRequest) ([]v1alpha1.TracedPacket, error)
	// Explain reports what the modules of a service would do to a packet. Nothing on the node notices.
	Explain(ctx context.Context, r v1alpha1.ExplainRequest) (v1alpha1.ExplainedPacket, error)
	// Collect adds the agent's and the modules' metrics.
	Collect(out *promtext.Set)
}
