// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "time"

// FlowsRequest selects flows. Zero values match any flow.
type FlowsRequest struct {
	Service  string `query:"service" doc:"Only this service"`
	Peer     string `query:"peer" doc:"Address of the other end, or a prefix such as 192.0.2.0/24"`
	Protocol string `query:"protocol" doc:"tcp, udp, icmp, icmpv6 or a number"`
	Port     uint16 `query:"port" maximum:"65535" doc:"Source or destination port"`
	Since    int    `query:"since" minimum:"0" maximum:"3600" doc:"Instead of single flows: sums of the last seconds, rounded to whole minutes, by service, peer, protocol and destination port. 0: the flows that are open or have ended a moment ago"`
	Follow   bool   `query:"follow" doc:"Then also the flows that have packets, once a second, until the client disconnects. Not with since"`
	Count    int    `query:"count" minimum:"1" maximum:"5000" default:"1000" doc:"At most so many: those with the most bytes, and while following those with the latest packets"`
}

// FlowLine is one line of the answer: a flow, a count of missing flows, or the error that ends the answer.
type FlowLine struct {
	*Flow
	Missing *MissingFlows `json:"missing,omitempty"`
	Error   string        `json:"error,omitempty"`
}

// Flow is the traffic between two endpoints as a service on this node saw it: one pair of addresses and ports for TCP
// and UDP, one pair of addresses for other protocols. The source is the initiator: the endpoint that sent the SYN, or
// else the first packet seen. In answers for a period (since), flows that differ only in their source port are summed.
type Flow struct {
	Module      string `json:"module"`
	Service     string `json:"service,omitempty" doc:"That saw it; not there for interfaces of the node"`
	Interface   string `json:"interface" doc:"Of the service, on the node's side"`
	Direction   string `json:"direction" enum:"egress,ingress" doc:"egress: the service is the source. ingress: it is the destination"`
	Protocol    string `json:"protocol" doc:"tcp, udp, icmp, icmpv6 or a number"`
	Source      string `json:"source" doc:"Address; of several flows none if they have several"`
	SourcePort  uint16 `json:"sourcePort,omitempty"`
	Destination string `json:"destination" doc:"Address; of several flows none if they have several"`
	// the other fields of the same kind are of replies
	DestinationPort    uint16 `json:"destinationPort,omitempty"`
	SourceService      string `json:"sourceService,omitempty" doc:"Of this node, with the source's address"`
	DestinationService string `json:"destinationService,omitempty" doc:"Of this node, with the destination's address; or a virtual service"`

	Packets      uint64 `json:"packets" doc:"From the source to the destination. A batch of the kernel (GRO, TSO) is one"`
	Bytes        uint64 `json:"bytes" doc:"Of the frames of these packets"`
	ReplyPackets uint64 `json:"replyPackets" doc:"From the destination to the source"`
	ReplyBytes   uint64 `json:"replyBytes"`
	Flows        uint64 `json:"flows,omitempty" doc:"How many flows this is the sum of, with since"`
	Connections  uint64 `json:"connections,omitempty" doc:"TCP connections that were opened"`

	Verdict      string `json:"verdict" enum:"next,drop,reply,mixed" doc:"next: all packets passed the modules of the service. drop: modules dropped all. reply: modules answered all packets from the source. mixed: anything else"`
	Dropped      uint64 `json:"dropped,omitempty" doc:"Packets from the source that a module of the service's chain dropped"`
	ReplyDropped uint64 `json:"replyDropped,omitempty"`
	Replied      uint64 `json:"replied,omitempty" doc:"Packets from the source that a module answered"`
	DropModule   string `json:"dropModule,omitempty" doc:"That dropped last; not there if it was removed before the agent started"`
	DropReason   string `json:"dropReason,omitempty"`

	State                  string     `json:"state,omitempty" enum:"opening,established,closing,closed,reset," doc:"Of the TCP connection"`
	ToResponderNanoseconds int64      `json:"toResponderNanoseconds,omitempty" doc:"From SYN to SYN/ACK: the way from the node to the destination and back. With since: the mean"`
	ToInitiatorNanoseconds int64      `json:"toInitiatorNanoseconds,omitempty" doc:"From SYN/ACK to ACK: the way from the node to the source and back. With since: the mean"`
	Retransmits            uint64     `json:"retransmits,omitempty" doc:"TCP segments from the source with data, SYN or FIN that start before the last new byte: retransmitted or reordered"`
	ReplyRetransmits       uint64     `json:"replyRetransmits,omitempty"`
	First                  *time.Time `json:"first,omitempty" doc:"When the first packet was seen; not with since"`
	Last                   time.Time  `json:"last" doc:"When the last packet was seen"`
}

// MissingFlows describes what an answer lacks of a service: flows beyond its limits, and packets that were not
// recorded.
type MissingFlows struct {
	Module            string `json:"module"`
	Service           string `json:"service,omitempty"`
	Interface         string `json:"interface,omitempty"`
	Omitted           uint64 `json:"omitted,omitempty" doc:"Flows that match, but are more than count"`
	Others            uint64 `json:"others,omitempty" doc:"With since: flows that are not among the largest of their minute"`
	OtherPackets      uint64 `json:"otherPackets,omitempty"`
	OtherBytes        uint64 `json:"otherBytes,omitempty"`
	UnrecordedPackets uint64 `json:"unrecordedPackets,omitempty" doc:"Packets of flows that there was no room for. Without since: since the service was attached"`
	UnrecordedBytes   uint64 `json:"unrecordedBytes,omitempty"`
	UnreadablePackets uint64 `json:"unreadablePackets,omitempty" doc:"IP packets whose headers cannot be parsed"`
	UnreadableBytes   uint64 `json:"unreadableBytes,omitempty"`
}
