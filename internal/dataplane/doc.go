// SPDX-License-Identifier: Apache-2.0

// Package dataplane is the only one that loads and attaches chains; control planes access the maps of their modules by
// package sdk. It creates the maps of a module (a map set), links the code of several modules into one program per hook
// (a chain), attaches chains to interfaces (attach points), replaces them atomically, and finds all of them again after
// a restart: everything that runs is pinned under names that identify it, so that the kernel's state can be compared
// with the desired state without a separate record. A module on sockets is a chain of its own, of several programs,
// whose attach points are cgroups.
package dataplane
