// SPDX-License-Identifier: Apache-2.0

// Package version reports which build this is.
package version

import "runtime/debug"

// stamped is set by the linker: -X github.com/kerb-edge/kerb/internal/version.stamped=v1.2.3
var stamped string

// unknown is the version of builds that neither the linker nor Go has stamped.
const unknown = "devel"

// Version is the version of the build: what the linker set, else what Go knows of the module, else devel.
func Version() string {
	if stamped != "" {
		return stamped
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return unknown
}

// Differ reports whether two versions are those of different builds. A build without a version is not known to differ.
func Differ(x, y string) bool { return x != y && x != unknown && y != unknown }
