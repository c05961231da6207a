// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"reflect"
	"testing"
)

// Oakestra's proxy has no settings; Kerb's has to know which addresses are virtual.
func TestProxyKnowsVirtualAddresses(t *testing.T) {
	ranges := []string{"10.30.0.0/16"}
	got, err := module{Name: "proxy", Config: map[string]any{"shortPath": false}}.resource(ranges)
	if err != nil || got.Spec.Package != "proxy" || !reflect.DeepEqual(got.Spec.Config, map[string]any{"ranges": ranges, "shortPath": false}) {
		t.Errorf("%+v, %v", got.Spec, err)
	}
	own := []any{"10.99.0.0/16"}
	if got, err = (module{Name: "proxy", Config: map[string]any{"ranges": own}}).resource(ranges); err != nil || !reflect.DeepEqual(got.Spec.Config, map[string]any{"ranges": own}) {
		t.Errorf("%+v, %v", got.Spec, err)
	}
}
