// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/service"
	"github.com/kerb-edge/kerb/sdk"
)

// A control plane gets one attachment for each interface, as the service sees it, and those on sockets.
func TestInstancesOf(t *testing.T) {
	members := func(names ...string) (c chain.Spec) {
		for _, name := range names {
			c.Members = append(c.Members, chain.Member{Name: name})
		}
		return c
	}
	own := []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")}
	peer := []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}
	web := service.Link{Name: "veth7", Ifindex: 7, Kind: "veth", Type: ethernet, MTU: 1500, PeerMTU: 1400, Addresses: own,
		PeerAddresses: peer}
	tun := service.Link{Name: "tun0", Ifindex: 9, Kind: "tun", Type: raw, MTU: 1420, Addresses: own, PeerAddresses: peer,
		IPsec: &sdk.IPsec{}}
	onSockets := sdk.Attachment{Service: "db", CgroupID: 5}
	p := Placements{
		{Ifindex: 7, Side: chain.OnTCIngress}:                 {Service: "web", Link: web, Chain: members("m")},
		{Ifindex: 7, Side: chain.OnTCEgress}:                  {Service: "web", Link: web, Chain: members("fw", "m")},
		{Ifindex: 9, Side: chain.OnTCIngress}:                 {Link: tun, Chain: members("m", "log")},
		{Ifindex: 11, Side: chain.OnTCIngress}:                {Link: tun, Chain: members("other")},
		{Side: chain.OnSockets, Cgroup: 5, Module: "m"}:       {Attachments: []sdk.Attachment{onSockets}},
		{Side: chain.OnSockets, Cgroup: 5, Module: "another"}: {Attachments: []sdk.Attachment{onSockets}},
	}
	want := []sdk.Attachment{
		onSockets,
		{Service: "web", Interface: "veth7", Ifindex: 7, Kind: "veth", MTU: 1400, Addresses: []string{"10.0.0.2/24"},
			Ingress: []string{"fw", "m"}},
		{Interface: "tun0", Ifindex: 9, Kind: "tun", MTU: 1420, Addresses: []string{"192.0.2.1/24"}, IPsec: tun.IPsec,
			LinkType: tun.LinkType(),
			Ingress:  []string{"m", "log"}},
	}
	if diff := cmp.Diff(want, p.AttachmentsOf("m")); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}
