// SPDX-License-Identifier: Apache-2.0

// Package resolve resolves virtual addresses to instances and their locations. Its Table holds all virtual services of
// the node: those that were applied, and those that a resolver returned for an address that a control plane looked up.
// Each control plane has a Subscription to the table.
package resolve

import (
	"context"
	"net/netip"

	"github.com/kerb-edge/kerb/internal/integration/link"
)

// Resolver looks up virtual services that were not applied. Lookup and Release do not block.
type Resolver interface {
	// Source returns its name in status.source.
	Source() string
	// Run runs until ctx ends, and reports results to the sink.
	Run(ctx context.Context, sink Sink) error
	// Lookup starts a lookup and returns true, or returns false for an address outside the resolver's ranges. The
	// result arrives later: Put of a virtual service that has the address, or NotFound.
	Lookup(addr netip.Addr) bool
	// Release reports that a virtual service is no longer in use. The resolver forgets it.
	Release(name string)
}

// Sink receives the results of a resolver.
type Sink interface {
	Put(source string, r Record)             // a virtual service was found or has changed
	Delete(source string, name string)       // a virtual service no longer exists
	NotFound(source string, addr netip.Addr) // the result of a lookup
	Records(source string) map[string]Record // by name; when Run starts: the records stored by an earlier agent
}

// Record is a virtual service that a resolver found.
type Record = link.Record
