// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// What modules declare decides, not the names of their packages.
func TestLostReplies(t *testing.T) {
	filter := with(onBoth("strict", "*"), func(m *Module) {
		m.Inbound, m.Resource.Spec.Order.Direction = &sdk.Inbound{Advice: "open the gate"}, v1.OrderSame
	})
	translator := with(onBoth("vip", "*"), func(m *Module) {
		m.TranslatesReplies, m.Resource.Spec.Order.Direction = true, v1.OrderSame
	})
	far := []v1.VirtualService{{Metadata: v1.ObjectMeta{Name: "api"},
		Spec: v1.VirtualServiceSpec{Addresses: []v1.VirtualAddress{{Address: "10.9.0.1"}}}, Status: &v1.VirtualServiceStatus{
			Instances: []v1.VirtualInstanceStatus{{Name: "here", Service: "web", Addresses: []string{"10.0.0.1"}},
				{Name: "far", Addresses: []string{"10.0.0.2"}}}}}}
	admits := func(prefix string) *Module {
		return with(onBoth("strict", "*"), func(m *Module) {
			m.Inbound = &sdk.Inbound{Sources: []netip.Prefix{netip.MustParsePrefix(prefix)}}
		})
	}
	mirrored := with(onBoth("vip", "*"), func(m *Module) { m.TranslatesReplies = true })
	farther := with(onBoth("strict", "*"), func(m *Module) {
		m.Inbound, m.Resource.Spec.Order.After = &sdk.Inbound{}, []string{"vip"}
	})
	local := []v1.VirtualService{far[0]}
	local[0].Status = &v1.VirtualServiceStatus{Instances: far[0].Status.Instances[:1]}
	remote := []v1.VirtualService{far[0]}
	remote[0].Status = &v1.VirtualServiceStatus{Instances: far[0].Status.Instances[1:]}
	for name, c := range map[string]struct {
		modules []*Module
		virtual []v1.VirtualService
		lost    bool
	}{
		"farther, instances of the node": {[]*Module{farther, mirrored}, local, true},
		"farther, other instances":       {[]*Module{farther, mirrored}, remote, false},
		"farther, admits all": {[]*Module{with(onBoth("strict", "*"), func(m *Module) {
			m.Inbound, m.Resource.Spec.Order.After = admits("0.0.0.0/0").Inbound, []string{"vip"}
		}), mirrored}, local, false},
		"a filter and a translator": {[]*Module{filter, translator}, far, true},
		"the translator comes first": {[]*Module{
			with(onBoth("strict", "*"), func(m *Module) { m.Inbound = filter.Inbound }),
			with(onBoth("vip", "*"), func(m *Module) { m.TranslatesReplies = true })}, far, false},
		"without the filter":          {[]*Module{onBoth("strict", "*"), translator}, far, false},
		"without the translator":      {[]*Module{filter, onBoth("vip", "*")}, far, false},
		"without virtual services":    {[]*Module{filter, translator}, nil, false},
		"the filter admits another":   {[]*Module{admits("10.0.0.1/32"), translator}, far, true},
		"the filter admits it":        {[]*Module{admits("10.0.0.0/24"), translator}, far, false},
		"behind, the instance only":   {[]*Module{admits("10.0.0.0/24"), mirrored}, far, true},
		"behind, the virtual one too": {[]*Module{admits("10.0.0.0/8"), mirrored}, far, false},
		"behind, another instance":    {[]*Module{admits("10.0.0.1/32"), mirrored}, far, false},
		"on different services": {[]*Module{with(onBoth("strict", "tier=back"),
			func(m *Module) { m.Inbound = filter.Inbound }),
			with(onBoth("vip", "tier=front"), func(m *Module) { m.TranslatesReplies = true })}, far, false},
		"a filter that cannot run": {[]*Module{
			with(onBoth("strict", "*"), func(m *Module) {
				m.Inbound, m.CannotRun = filter.Inbound, true
			}), translator}, far, false},
		"a virtual service unknown yet": {[]*Module{filter, translator}, []v1.VirtualService{{}}, false},
	} {
		in := node(c.modules...)
		placed, err := in.Place()
		if err != nil {
			t.Fatal(err)
		}
		got := in.LostReplies(placed, c.virtual)
		if lost := len(got) > 0; lost != c.lost {
			t.Errorf("%s: %v", name, got)
		}
		instance := "api/far (10.0.0.2)"
		if len(c.virtual) > 0 && c.virtual[0].Status == local[0].Status {
			instance = "api/here"
		}
		if c.lost && (got["strict"] != got["vip"] || !strings.Contains(got["vip"], instance)) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
