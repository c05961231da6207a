// SPDX-License-Identifier: Apache-2.0

// Package examples holds packages of the kind that others write, built and driven by its tests: ratelimit, without control
// plane, and topports, with one in Python.
package examples

import "embed"

// Topports is the directory topports as it was when this program was built, for the benchmark of control planes. The
// pattern matches in a fresh checkout too, where nothing is compiled yet.
//
//go:embed topports/*.[bptxy]*
var Topports embed.FS
