// SPDX-License-Identifier: Apache-2.0

// Package server implements the REST API of the agent: routes, the OpenAPI document, strict decoding, problems,
// metrics, and the listeners. It accesses the agent only as a Backend and never the kernel.
package server

import (
	"context"
	"net/http"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/internal/resource"
)

// Backend is the API's interface to the agent. Its errors are those of package apierrors; all others are internal
// errors. It is safe for concurrent use.
type Backend interface {
	// Apply creates, updates and deletes all resources of the request, or none of them. Changes have the resources before
	// and after. Deleting an unknown resource is *apierrors.NotFound.
	Apply(ctx context.Context, r resource.Request) (v1alpha1.ApplyResult, error)

	// Changes returns records of changes, newest first and without before, after and steps; Change returns one.
	// *apierrors.NotFound if it is not kept.
	Changes(ctx context.Context, r v1alpha1.ChangesRequest) ([]v1alpha1.ChangeRecord, error)
	Change(ctx context.Context, number int64) (v1alpha1.ChangeRecord, error)
	// Revert restores the resources of a change to their previous state: all of them or none.
	Revert(ctx context.Context, r v1alpha1.RevertRequest) (v1alpha1.ApplyResult, error)

	// Events sends past events, and new ones until ctx ends if the request follows.
	Events(ctx context.Context, r v1alpha1.EventsRequest, send func(v1alpha1.Event) error) error
	// Flows sends flows, and with r.Follow new ones until ctx ends. *apierrors.Conflict if no module records them.
	Flows(ctx context.Context, r v1alpha1.FlowsRequest, send func(v1alpha1.FlowLine) error) error
	// History sends samples: past ones, or new ones until ctx ends. *apierrors.Conflict if there is no history.
	History(ctx context.Context, r v1alpha1.HistoryRequest, send func(v1alpha1.HistoryLine) error) error

	// ChangeSet adds and deletes elements of a set. An unknown set is *apierrors.NotFound.
	ChangeSet(ctx context.Context, r resource.SetRequest) (v1alpha1.SetChanged, error)

	// List returns all resources of a kind with their status, sorted by name, maybe without the fields that lists omit.
	List(ctx context.Context, kind resource.Kind) ([]resource.Object, error)
	// Get returns a resource. *apierrors.NotFound if it does not exist.
	Get(ctx context.Context, kind resource.Kind, name string) (resource.Object, error)
	// Brief is Get without the fields that lists omit. It reads little from the kernel.
	Brief(ctx context.Context, kind resource.Kind, name string) (resource.Object, error)
	// Version returns a stored earlier generation of a resource.
	Version(ctx context.Context, kind resource.Kind, name string, generation int64) (resource.Object, error)

	// Lists are sorted by name.
	Chains(ctx context.Context) ([]v1alpha1.Chain, error)
	Packages(ctx context.Context) ([]v1alpha1.Package, error)
	Package(ctx context.Context, name string) (v1alpha1.Package, error)
	// PullPackage puts a package of a registry into the node's store, unless it is there. *apierrors.NotFound if the
	// registry does not have it, *apierrors.Rejected if the node does not accept it, *apierrors.Unavailable if it may do
	// so later.
	PullPackage(ctx context.Context, r v1alpha1.PackageRequest) (v1alpha1.Package, error)
	// RemovePackage removes a package that its owner has pulled. *apierrors.Conflict if a module uses it, or another owner
	// has pulled it.
	RemovePackage(ctx context.Context, r v1alpha1.PackageRequest) (v1alpha1.PackageRemoved, error)
	Status(ctx context.Context) (v1alpha1.NodeStatus, error)
	Counts(ctx context.Context) (v1alpha1.NodeCounts, error)

	// ServeModule serves a request with the routes of the module's control plane. The path is the one below
	// /v1/modules/<name>, beginning with a slash. It returns *apierrors.NotFound, and writes no answer, if the module does
	// not exist or has no routes.
	ServeModule(w http.ResponseWriter, r *http.Request, name string) error
	// Trace reports the verdicts of modules on packets, until ctx ends or the request's limits are reached.
	Trace(ctx context.Context, r v1alpha1.TraceRequest, send func(v1alpha1.TraceLine) error) error
	// Drops returns the last packets that modules dropped, oldest first: a sample if there were many.
	Drops(ctx context.Context, r v1alpha1.DropsRequest) ([]v1alpha1.TracedPacket, error)
	// Explain reports what the modules of a service would do to a packet, without any effect on the node.
	Explain(ctx context.Context, r v1alpha1.ExplainRequest) (v1alpha1.ExplainedPacket, error)
	// Collect adds the agent's and the modules' metrics.
	Collect(out *promtext.Set)
}
