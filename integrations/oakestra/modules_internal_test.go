// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"reflect"
	"testing"
)

// Oakestra's proxy has no settings; Kerb's has to know which addresses are virtual.
func TestProxyKnowsVirtualAddresses(t *testing.T) {
	ranges := []string{"10.30.0.0/16"}
	got, err := module{Name: "proxy", Config: map[string]any{"shortPath": false}}.resource(Options{Ranges: ranges})
	if err != nil || got.Spec.Package != "proxy" ||
		!reflect.DeepEqual(got.Spec.Config, map[string]any{"ranges": ranges, "shortPath": false, "source": "instance"}) {
		t.Errorf("%+v, %v", got.Spec, err)
	}
	own := []any{"10.99.0.0/16"}
	got, err = (module{Name: "proxy", Config: map[string]any{"ranges": own}}).resource(Options{Ranges: ranges})
	if err != nil ||
		!reflect.DeepEqual(got.Spec.Config, map[string]any{"ranges": own, "source": "instance"}) {
		t.Errorf("%+v, %v", got.Spec, err)
	}
}

// A module whose creation was never confirmed is removed when its update is not confirmed either: there is no config to
// restore.
func TestUnconfirmedModuleGivenAgain(t *testing.T) {
	l := &Listener{}
	for config := range 2 {
		l.register("web", moduleRequest{Name: "firewall", Config: config}, nil)
		if got := l.state.Modules; len(got) != 1 || got[0].Pending != pendingCreate {
			t.Errorf("given %d times: %+v, want one that is to be created", config+1, got)
		}
	}
	l.state.Modules[0].Pending = "" // confirmed
	l.register("web", moduleRequest{Name: "firewall", Config: 2}, nil)
	if got := l.state.Modules[0]; got.Pending != pendingUpdate || got.Config != 0 {
		t.Errorf("an update of a confirmed module: %+v", got)
	}
}
