// SPDX-License-Identifier: Apache-2.0

package change

import (
	"testing"

	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/modules"
)

// Of the built-in packages, only intercept delivers packets to programs in real time.
func TestDeliversInTime(t *testing.T) {
	catalog := pkgs.NewCatalog(modules.Packages(), modules.Controls())
	for _, name := range []string{"firewall", "intercept", "proxy", "responder"} {
		p, err := catalog.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		got := deliverInTime(map[string]*deploy.Module{"unavailable": {}, "m": {Pkg: p}})
		if want := name == "intercept"; got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
