// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resolve"
	"github.com/kerb-edge/kerb/sdk"
)

// Frames arrive at interfaces of the node that the module is attached to, and nowhere else.
func TestArrivalsWhereAttached(t *testing.T) {
	var got []sdk.Arrival
	opts := (&provider{}).options(t)
	opts.Arrive = func(all []sdk.Arrival) error { got = all; return nil }
	p := newSupervisor("m", packageNaming("arrivals"), opts, nil)
	requests := &sdk.Requests{Arrive: []sdk.Arrival{{Ifindex: 2}, {Ifindex: 7}, {Ifindex: 9}}}
	g := grantsOf[server](p)[0]
	if g.serve(t.Context(), p, nil, requests); len(got) != 0 {
		t.Errorf("before there is a map set: %v", got)
	}
	requests.Arrive = []sdk.Arrival{{Ifindex: 2}, {Ifindex: 7}, {Ifindex: 9}}
	p.want = &live{attachments: []sdk.Attachment{{Service: "web", Ifindex: 7}, {Interface: "eth0", Ifindex: 2}}}
	if g.serve(t.Context(), p, nil, requests); len(got) != 1 || got[0].Ifindex != 2 {
		t.Errorf("frames arrive at %v", got)
	}
}

// resolver looks up nothing: the test has the answers.
type resolver struct{}

func (resolver) Source() string                          { return "test" }
func (resolver) Run(context.Context, resolve.Sink) error { return nil }
func (resolver) Lookup(netip.Addr) bool                  { return true }
func (resolver) Release(string)                          {}

// Of two control planes that have looked up the same, the one with the capability arrivals gets it before the other:
// that one sends the packets that have waited, and what the first one knows decides on them.
func TestArrivalsGetFirst(t *testing.T) {
	opts := (&provider{}).options(t)
	synctest.Test(t, func(t *testing.T) {
		opts.Services = resolve.NewTable(quiet, "", resolver{})
		subscribe := func(capabilities ...string) serviceGrant {
			g := grantsOf[serviceGrant](newSupervisor(capabilities[0], packageNaming(capabilities...), opts, nil))[0]
			u, _ := g.Next() // there is none yet
			g.Ack(u, nil)
			return g
		}
		proxy, tunnel := subscribe("virtualServices"), subscribe("virtualServices", "arrivals")
		address := v1alpha1.VirtualAddress{Address: "10.30.0.1"}
		for _, g := range []serviceGrant{proxy, tunnel} {
			g.Handle(sdk.Requests{Resolve: []netip.Addr{netip.MustParseAddr(address.Address)}})
		}
		opts.Services.Put("test", resolve.Record{Name: "test.app", Spec: v1alpha1.VirtualServiceSpec{
			Addresses: []v1alpha1.VirtualAddress{address}}})
		if u, more := proxy.Next(); more {
			t.Errorf("before the tunnel: %d", len(u.Put))
		}
		u, _ := tunnel.Next()
		if len(u.Put) != 1 {
			t.Errorf("the tunnel gets %d", len(u.Put))
		}
		tunnel.Ack(u, nil)
		if u, _ := proxy.Next(); len(u.Put) != 1 {
			t.Errorf("after the tunnel: %d", len(u.Put))
		}
	})
}
