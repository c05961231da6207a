// SPDX-License-Identifier: Apache-2.0

// Package version reports which build this is.
package version

import "runtime/debug"

// stamped is set by the linker: -X github.com/kerb-edge/kerb/internal/version.stamped=v1.2.3
var stamped string

// Version is the version of the build: what the linker set, else what Go knows of the module, else devel.
func Version() string {
	if stamped != "" {
		return stamped
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
