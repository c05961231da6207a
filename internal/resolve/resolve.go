// SPDX-License-Identifier: Apache-2.0

// Package resolve answers which instances a virtual address stands for, and where they are. Its Table holds all virtual
// services of the node: those that were applied, and those that resolvers found because a control plane wanted them.
// Control planes follow it by Followers: all of it first, differences from then on.
package resolve

import (
	"context"
	"net/netip"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Resolver finds virtual services that were not applied. Want and Idle do not wait.
type Resolver interface {
	// Source is its name in status.source.
	Source() string
	// Run works until ctx ends. What it finds it tells.
	Run(ctx context.Context, tell Answers) error
	// Want asks for an address. One that is not among the resolver's is answered false; else Found with it, or Unknown,
	// follows at some time.
	Want(addr netip.Addr) bool
	// Idle reports a virtual service that is no longer in use; it is Gone from then on.
	Idle(name string)
	// Err is why it cannot answer now, nil if it can.
	Err() error
}

// Answers are what a resolver may tell.
type Answers interface {
	Found(source string, s Found)         // new or changed
	Gone(source string, name string)      // of one that was found
	Unknown(source string, a netip.Addr)  // of one that was wanted
	Known(source string) map[string]Found // what an earlier agent was told, when Run begins
}

// Found is a virtual service that a resolver found. Its name has a dot in it, which those of resources have not.
type Found struct {
	Name string                `json:"name"`
	Spec v1.VirtualServiceSpec `json:"spec"`
}
