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

// Compile returns what a control plane makes of a config, as the module's own type.
func Compile[C sdk.Compiled](t testing.TB, control sdk.Control, config string) C {
	t.Helper()
	c, err := control.Compile(json.RawMessage(config))
	if err != nil {
		t.Fatal(err)
	}
	return c.(C)
}

// Open returns the control plane's state for a map set that has just been started, as the module's own type.
func Open[R any](t testing.TB, c sdk.Compiled, live sdk.Live) R {
	t.Helper()
	state, err := c.Open(live)
	if err != nil {
		t.Fatal(err)
	}
	return state.(R)
}
