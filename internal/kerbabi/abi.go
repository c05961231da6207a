// SPDX-License-Identifier: Apache-2.0

// Package kerbabi is the Go side of bpf/include/kerb/types.h: the numbers that
// the data plane counts and returns, and the names that people and metrics
// know them by. A test compares it with the BTF of a compiled object.
package kerbabi

import "strconv"

// ParseOutcome is how parsing a packet ended (enum kerb_parse).
type ParseOutcome uint8

// The outcomes; bpf/include/kerb/parse.h documents what the context holds after each.
const (
	ParseOK ParseOutcome = iota
	ParseNotIP
	ParseShortL2
	ParseVLANDepth
	ParseShortL3
	ParseBadVersion
	ParseBadIHL
	ParseBadLength
	ParseExtDepth
	ParseShortL4
	ParseBadL4
)

// ParseOutcomes are the names of the outcomes, by number.
var ParseOutcomes = []string{"ok", "not_ip", "short_l2", "vlan_depth", "short_l3", "bad_version", "bad_ihl",
	"bad_length",
	"ext_depth", "short_l4", "bad_l4"}

func (o ParseOutcome) String() string { return name(ParseOutcomes, uint32(o)) }

// DropReason is why a packet was dropped (enum kerb_drop_reason).
type DropReason uint32

// The reasons that belong to Kerb, and the bounds of those that belong to the
// module that drops.
const (
	DropUnspec DropReason = iota
	DropPolicy
	DropMalformed
	DropFragment
	DropExtension
	DropState
	DropTableFull
	DropRate
	DropNoRoute
	DropTooBig
	DropNoMemory
	DropBadVerdict
	DropUnavailable

	DropModuleFirst DropReason = 32
)

// DropReasonCount is how many numbers there are.
const DropReasonCount = 64

// DropReasons are the names of Kerb's own reasons, by number.
var DropReasons = []string{"unspec", "policy", "malformed", "fragment", "extension", "state", "table_full",
	"rate", "no_route",
	"too_big", "no_memory", "bad_verdict", "unavailable"}

// DropReasonName is the name of a reason. A module's own reasons, whose names
// are in its manifest, are called module_0 and so on; numbers that nothing
// defines are printed as they are.
func DropReasonName(n uint32) string {
	if n >= uint32(DropModuleFirst) && n < DropReasonCount {
		return "module_" + strconv.Itoa(int(n)-int(DropModuleFirst))
	}
	return name(DropReasons, n)
}

func (r DropReason) String() string { return DropReasonName(uint32(r)) }

func name(names []string, n uint32) string {
	if n < uint32(len(names)) {
		return names[n]
	}
	return strconv.FormatUint(uint64(n), 10)
}

// EventCount is an index of the counters of events (enum kerb_event_count).
type EventCount uint32

// The counters, and how many there are.
const (
	EventsSent EventCount = iota
	EventsLost
	EventsLostBytes
	EventCounts
)

// Flags of a parsed packet (KERB_F_*).
const (
	FlagFragFirst = 1 << iota
	FlagFragLater
	FlagOptions
	FlagExt
	FlagL4
)

// ToDeferred is the flag of a redirect that modules behind see (KERB_TO_DEFERRED).
const ToDeferred = 1 << 4

// Bounds of the parser (KERB_MAX_EXT, KERB_MAX_HDRS, KERB_VLAN_DEPTH).
const (
	MaxExt    = 6
	MaxHdrs   = 0x1ff
	VLANDepth = 2
)

// Packet is struct kerb_pkt: what the head of a chain finds out about a packet.
// Offsets and lengths are bytes, EthType and VLAN are in host byte order. The
// three addresses mean nothing outside of the program that holds them.
type Packet struct {
	Ctx, Data, DataEnd uint64
	L3, L4             uint64       // of the IP header; of the transport header, or of what follows the IP headers
	Ifindex, Len       uint32       // that the chain is attached to; of the whole frame, paged data included
	EthType, VLAN      uint16       // after VLAN tags; TCI of the outermost tag, 0: none
	Family, Proto      uint8        // 4, 6, or 0 if it is not IP; IANA number, after extension headers
	Flags              uint8        // KERB_F_*
	Outcome            ParseOutcome // of the parser
	L4Len              uint32       // from L4 to the end of the IP datagram, without padding
	Reason             DropReason   // of a drop
	ToIfindex, ToFlags uint32       // of a redirect; KERB_TO_*
}
