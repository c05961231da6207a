// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"net/netip"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// AttachmentsOf lists the attachments of a module for its control plane.
func (p Placements) AttachmentsOf(module string) []sdk.Attachment {
	seen := map[int]bool{}
	var out []sdk.Attachment
	for point, place := range p {
		if point.Module == module {
			out = append(out, place.Attachments...)
			continue
		}
		for _, m := range place.Chain.Members {
			if m.Name == module && !seen[point.Ifindex] {
				seen[point.Ifindex] = true
				out = append(out, attachmentAt(place, p.ingress(point.Ifindex, place.Service != "")))
			}
		}
	}
	sdk.SortAttachments(out)
	return out
}

// attachmentAt returns an attachment for a control plane. For a service it describes the interface inside the service,
// with the smaller MTU of both ends; for a node interface, the interface itself.
func attachmentAt(place Placement, ingress []string) sdk.Attachment {
	l := place.Link
	i := sdk.Attachment{Service: place.Service, Interface: l.Name, Ifindex: uint32(l.Ifindex), Kind: l.Kind, MTU: l.MTU,
		Ingress: ingress}
	if kind := l.LinkType(); kind != "ethernet" {
		i.LinkType = kind
	}
	if place.Service == "" {
		i.MAC, i.Addresses, i.IPsec = l.MAC.String(), prefixes(l.Addresses), l.IPsec
		return i
	}
	i.MAC = l.PeerMAC.String()
	if l.PeerMTU > 0 {
		i.MTU = min(l.MTU, l.PeerMTU)
	}
	i.Addresses, i.LinkLocal = prefixes(l.PeerAddresses), prefixes(l.PeerLinkLocal)
	return i
}

func prefixes(all []netip.Prefix) (out []string) {
	for _, p := range all {
		out = append(out, p.String())
	}
	return
}

// ingress lists the modules on TC that packets to a service, or into the node, meet at an interface.
func (p Placements) ingress(ifindex int, isService bool) []string {
	side := chain.OnTCIngress
	if isService {
		side = chain.OnTCEgress
	}
	var out []string
	for _, m := range p[chain.Point{Ifindex: ifindex, Side: side}].Chain.Members {
		out = append(out, m.Name)
	}
	return out
}
