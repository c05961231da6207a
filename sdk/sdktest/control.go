// SPDX-License-Identifier: Apache-2.0

// Package sdktest tests modules the way the built-in ones are tested: it loads a package as the agent would, runs
// packets through its data plane, and runs its control plane on the same maps. Tests that load programs need root and
// are skipped without it.
package sdktest

import (
	"encoding/json"
	"testing"

	"github.com/kerb-edge/kerb/sdk"
)

// Compile compiles a config, and returns it as the module's type.
func Compile[C sdk.Compiled](t testing.TB, control sdk.Control, config string) C {
	t.Helper()
	c, err := control.Compile(json.RawMessage(config))
	if err != nil {
		t.Fatal(err)
	}
	return c.(C)
}

// Open opens a map set, and returns the control plane's state as the module's type.
func Open[R any](t testing.TB, c sdk.Compiled, live sdk.Live) R {
	t.Helper()
	state, err := c.Open(live)
	if err != nil {
		t.Fatal(err)
	}
	return state.(R)
}
