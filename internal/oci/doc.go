// SPDX-License-Identifier: Apache-2.0

// Package oci pushes signed packages to registries and image layouts, and pulls them into the node's store, from which
// the agent loads them. It verifies packages with the keys on the node when they are pulled, and again, offline, each
// time they are opened. The agent itself downloads only packages that a client of its API requests by digest.
package oci
