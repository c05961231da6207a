// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"testing"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// The Go structures in maps have the layout of the compiled data plane; fields are matched by name.
func TestDataPlaneLayouts(t *testing.T) {
	p := pkgstest.Package(t)
	spec, err := p.Spec(string(chain.TC))
	if err != nil {
		t.Fatal(err)
	}
	for name, mirror := range map[string]any{
		"px_vip": vip{}, "px_port": portKey{}, "px_range": addressRange{}, "px_ranges": addressRanges{},
		"px_place": place{}, "px_instance": instance{}, "px_instance_stats": instanceStats{}, "px_local": local{},
		"px_flow": flow{}, "px_session": session{}, "px_fragment": fragment{}, "px_fragment_of": fragmentOf{},
		"px_asked": asked{}, "px_ask": askKey{}, "px_share": share{}, "px_unknown": unknown{},
		"px_name_of": nameKey{}, "px_name": name{},
	} {
		sdktest.NamedLayout(t, spec.Types, name, mirror)
	}
}
