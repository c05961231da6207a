// SPDX-License-Identifier: Apache-2.0

package proxy

import "net/netip"

// Names of the maps in maps.h.
const (
	mapVIPs          = "vips"
	mapPorts         = "ports"
	mapRanges        = "ranges"
	mapSlots         = "slots"
	mapTurns         = "turns"
	mapInstances     = "instances"
	mapOwners        = "owners"
	mapInstanceStats = "instance_stats"
	mapHot           = "hot"
	mapLocals        = "locals"
	mapInterfaces    = "interfaces"
	mapHomes         = "homes"
	mapNames         = "names"
	mapSessions      = "sessions"
	mapPending       = "pending"
	mapShares        = "shares"
	mapFragments     = "fragments"
	mapAsked         = "asked"
	mapUnknown       = "unknown"
	mapCounts        = "counts"
)

// Sizes in maps.h.
const (
	maxRanges = 16
	scanSlots = 16
	heldMax   = 9216
)

// address mirrors struct px_addr: 16 bytes, IPv4 as ::ffff:a.b.c.d.
type address [16]byte

func addressOf(a netip.Addr) address { return a.As16() }

func (a address) addr() netip.Addr { return netip.AddrFrom16(a).Unmap() }

// port is in network byte order.
type port [2]byte

func portOf(n uint16) port { return port{byte(n >> 8), byte(n)} }

func (p port) number() uint16 { return uint16(p[0])<<8 | uint16(p[1]) }

// Policies of the data plane (enum px_policy).
const (
	policyTurns      = 0
	policyLeast      = 1
	policyHashSource = 2
	policyHashFlow   = 3
)

// Flags of vip.
const (
	vipPorts    = 1 << 0
	vipNegative = 1 << 1
	vipAnswers  = 1 << 2
)

// vip mirrors struct px_vip.
type vip struct {
	Expires uint64
	ID      uint32
	First   uint32
	Count   uint32
	Policy  uint8
	Flags   uint8
	_       uint16
}

// portKey mirrors struct px_port.
type portKey struct {
	VIP   uint32
	Port  port
	Proto uint8
	_     uint8
}

// addressRange mirrors struct px_range.
type addressRange struct{ Prefix, Mask address }

// addressRanges mirrors struct px_ranges.
type addressRanges struct {
	Count uint32
	_     uint32
	Range [maxRanges]addressRange
}

// Flags of instance.
const (
	instanceDraining = 1 << 0
	instanceGone     = 1 << 1
)

// place mirrors struct px_place.
type place struct {
	Addr6 address
	Addr4 [4]byte
	Local uint32
}

// instance mirrors struct px_instance.
type instance struct {
	Generation uint32
	Flags      uint32
	Place      [2]place
}

// instanceStats mirrors struct px_instance_stats.
type instanceStats struct {
	Sessions int64
	Opened   uint64
	RTT      uint64
	Answers  uint64
	Failures uint64
}

// share mirrors struct px_share.
type share struct {
	Sessions uint64
	Window   uint32
	Opened   uint32
	Closed   uint32
	Asked    uint32
}

// localPeer is a flag of local.
const localPeer = 1 << 0

// local mirrors struct px_local.
type local struct {
	Ifindex uint32
	MAC     [6]byte
	Flags   uint8
	_       uint8
}

// Hooks (enum px_hook).
const (
	hookEgress  = 0
	hookIngress = 1
)

// flow mirrors struct px_flow.
type flow struct {
	Src, Dst     address
	SPort, DPort port
	Ifindex      uint32
	Proto        uint8
	Hook         uint8
	_            uint16
}

// Flags and states of session.
const (
	sessionReverse = 1 << 0
	sessionHairpin = 1 << 1
	sessionFar     = 1 << 2
	sessionJudged  = 1 << 3
	sessionNamed   = 1 << 4

	stateAnswered  = 1 << 0
	stateClientFIN = 1 << 1
	stateServerFIN = 1 << 2
	stateReset     = 1 << 3
	stateClosed    = 1 << 4
)

// session mirrors struct px_session.
type session struct {
	Seen         uint64
	Opened       uint64
	Addr         address
	SPort, DPort port
	Instance     uint32
	Generation   uint32
	Other        uint32
	Local        uint32
	Tick         uint32
	Flags        uint8
	State        uint8
	_            uint16
	_            uint32
}

// nameKey mirrors struct px_name_of.
type nameKey struct {
	Addr    address
	Ifindex uint32
}

// nameByInstance is set in Ifindex with the index of an instance.
const nameByInstance = 1 << 31

// Flags of name.
const (
	nameRetired = 1 << 0
	nameVirtual = 1 << 1
)

// name mirrors struct px_name.
type name struct {
	Other address
	Flags uint32
}

// fragment mirrors struct px_fragment.
type fragment struct {
	Src, Dst address
	ID       [4]byte
	Ifindex  uint32
	Proto    uint8
	Hook     uint8
	_        uint16
}

// fragmentOf mirrors struct px_fragment_of.
type fragmentOf struct {
	Seen uint64
	Flow flow
	_    uint32
}

// askKey mirrors struct px_ask.
type askKey struct {
	Addr    address
	Ifindex uint32
}

// asked mirrors struct px_asked.
type asked struct{ Since, Packets uint64 }

// unknown mirrors struct px_unknown; the frame follows.
type unknown struct {
	Ifindex uint32
	Len     uint32
	L3, L4  uint16
	Family  uint8
	Proto   uint8
	Flags   uint8
	Partial uint8
	Dst     address
}

// Indices of the counters (enum px_count).
const (
	countOpened = iota
	countReselected
	countMoved
	countReset
	countUnknown
	countUnanswered
	countNegative
	countNoInstance
	countNoPort
	countClash
	countNoSession
	countFragment
	countTableFull
	countOverQuota
	countCrowded
	countRecovered
)
