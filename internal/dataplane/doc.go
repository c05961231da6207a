// SPDX-License-Identifier: Apache-2.0

// Package dataplane is the only one that talks to the kernel. It creates the maps of a module (a map set), links the
// code of several modules into one program per hook (a chain), puts chains on interfaces (attach points), replaces them
// in one step, and finds all of it again after a restart: everything that runs is pinned, and the pins' names say what
// it is, so that the kernel can be compared with what is wanted without any notes on the side. A module on sockets is a
// chain of its own, of several programs, and its attach points are cgroups.
package dataplane
