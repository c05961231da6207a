// SPDX-License-Identifier: Apache-2.0

// Package oci moves packages: into registries and image layouts, signed, and from there into the node's store, out of
// which the agent loads them. What was pulled is checked twice: when it is pulled, and each time it is opened, offline,
// with the keys on the node. The agent downloads nothing but what a client of its API asks for by digest.
package oci
