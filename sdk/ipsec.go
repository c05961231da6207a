// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// IPsec lists the IPsec (XFRM) policies of the node's network namespace. A data plane that redirects packets to a
// neighbour bypasses these policies in both directions, so its control plane has to compare them with what it sends and
// receives.
type IPsec struct {
	Policies []IPsecPolicy `json:"policies,omitempty"` // the one that is evaluated first comes first
	// Error is the reason why the policies cannot be read. They are unknown then.
	Error string `json:"error,omitempty"`
}

// Equal reports whether both have the same policies.
func (s *IPsec) Equal(o *IPsec) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.Error == o.Error && slices.Equal(s.Policies, o.Policies)
}

// Directions and actions of policies.
const (
	IPsecIn, IPsecOut, IPsecForward      = "in", "out", "fwd"
	IPsecAllow, IPsecProtect, IPsecBlock = "allow", "protect", "block"
)

// IPsecPolicy is a policy for packets that have no mark and do not belong to an XFRM interface. Source and Destination
// have the address family of the packets; both are invalid in a policy for either family.
type IPsecPolicy struct {
	Direction       string       `json:"direction"`
	Action          string       `json:"action"` // allow: unprotected packets pass; protect: only with IPsec; block: none
	Index           uint32       `json:"index,omitempty"`
	Priority        uint32       `json:"priority"` // lower is evaluated first
	Source          netip.Prefix `json:"source,omitzero"`
	Destination     netip.Prefix `json:"destination,omitzero"`
	Protocol        uint8        `json:"protocol,omitempty"` // IANA number; 0 is any
	SourcePort      PortMask     `json:"sourcePort,omitzero"`
	DestinationPort PortMask     `json:"destinationPort,omitzero"`
	Ifindex         uint32       `json:"ifindex,omitempty"` // of the interface that the packet uses; 0 is any
}

// PortMask matches ports whose bits under Mask are those of Port. Mask 0 matches all.
type PortMask struct {
	Port uint16 `json:"port,omitempty"`
	Mask uint16 `json:"mask,omitempty"`
}

// Matches reports whether the port matches.
func (p PortMask) Matches(port uint16) bool { return (port^p.Port)&p.Mask == 0 }

// String returns the policy in the notation of ip xfrm policy.
func (p IPsecPolicy) String() string {
	if p.Index == 0 {
		return "default " + p.Direction + " " + p.Action
	}
	var b strings.Builder
	fmt.Fprintf(&b, "dir %s", p.Direction)
	if p.Source.IsValid() {
		fmt.Fprintf(&b, " src %s dst %s", p.Source, p.Destination)
	}
	if p.Protocol != 0 {
		fmt.Fprintf(&b, " proto %d", p.Protocol)
	}
	if p.SourcePort.Mask != 0 {
		fmt.Fprintf(&b, " sport %d", p.SourcePort.Port)
	}
	if p.DestinationPort.Mask != 0 {
		fmt.Fprintf(&b, " dport %d", p.DestinationPort.Port)
	}
	fmt.Fprintf(&b, " priority %d index %d", p.Priority, p.Index)
	return b.String()
}
