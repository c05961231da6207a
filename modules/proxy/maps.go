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
	vipAffinity = 1 << 3
	vipTargets  = 1 << 4
	vipSplit    = 1 << 5
)

// vip mirrors struct px_vip.
type vip struct {
	Expires uint64 // vipNegative: ns, CLOCK_MONOTONIC; vipAffinity: affinityTerm; else 0
	ID      uint32 // index in turns, VIP of ports
	First   uint32 // of its run of slots
	Count   uint32 // 0: no instance, answered with an ICMP error
	Policy  uint8  // enum px_policy
	Flags   uint8  // vipPorts ...
	_       uint16
}

// portKey mirrors struct px_port.
type portKey struct {
	VIP   uint32 // ID of the vip; portOfInstance, notOfInstance: index of the instance
	Port  port
	Proto uint8 // IANA number
	Of    uint8 // 0, portOfInstance, notOfInstance
}

// Values of Of in entries of instances.
const (
	portOfInstance = 1 // a target port of its own
	notOfInstance  = 2 // it gets no new session to the port; only if the virtual address has affinity
)

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
	instanceEjected  = 1 << 2
)

// place mirrors struct px_place.
type place struct {
	Addr6 address // all zero: none
	Addr4 [4]byte // all zero: none
	Local uint32  // index in locals; 0: not on this node, or without the proxy there
}

// instance mirrors struct px_instance.
type instance struct {
	Generation uint32 // Place[Generation&1] counts
	Flags      uint32 // instanceDraining, instanceGone
	Place      [2]place
}

// instanceStats mirrors struct px_instance_stats.
type instanceStats struct {
	Sessions int64  // open now
	Opened   uint64 // sessions ever
	RTT      uint64 // ns from SYN to SYN/ACK, moving average; 0: not measured
	Answers  uint64 // TCP connections that it accepted
	Failures uint64 // SYNs that it refused or left unanswered
}

// share mirrors struct px_share.
type share struct {
	Sessions uint64 // in the table sessions
	Window   uint32 // 2^30 ns each; what follows is of this one
	Opened   uint32 // sessions begun and not answered
	Closed   uint32 // sessions that went back to pending
	Asked    uint32 // packets to unknown addresses
}

// localPeer is a flag of local.
const localPeer = 1 << 0

// local mirrors struct px_local.
type local struct {
	Ifindex uint32  // on the node's side; 0: free
	MAC     [6]byte // of the interface inside; all zero: not known
	Flags   uint8   // localPeer
	_       uint8
}

// Hooks (enum px_hook).
const (
	hookEgress   = 0
	hookIngress  = 1
	hookAffinity = 2 // of an entry of sessions that is an affinity
)

// flow mirrors struct px_flow.
type flow struct {
	Src, Dst     address
	SPort, DPort port   // 0 without ports; identifier and type of ICMP echo
	Ifindex      uint32 // on which the packet is met
	Proto        uint8  // IANA number
	Hook         uint8  // hookEgress, hookIngress
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
	Seen         uint64  // ns, CLOCK_MONOTONIC; late by up to PX_TICK jiffies
	Opened       uint64  // ns: when the SYN passed, 0 once its answer was timed
	Addr         address // forward: the instance's; reverse: the virtual one, or with sessionHairpin the client's
	SPort, DPort port    // as they will be
	Instance     uint32  // index; 0: a connection to the instance's own address
	Generation   uint32  // of the instance's place
	Other        uint32  // ifindex on which the other direction is met
	Local        uint32  // index in locals of the receiver; 0: bridge or stack
	Tick         uint32  // the data plane's alone
	Flags        uint8   // sessionReverse ...
	State        uint8   // stateAnswered ...
	_            uint16
	_            uint32
}

// nameKey mirrors struct px_name_of.
type nameKey struct {
	Addr    address
	Ifindex uint32 // 0: on another node; or an index with nameByInstance
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
	Flags uint32 // nameRetired, nameVirtual
}

// fragment mirrors struct px_fragment.
type fragment struct {
	Src, Dst address
	ID       [4]byte
	Ifindex  uint32
	Proto    uint8 // IANA number; 0 for IPv6, which reassembles without it
	Hook     uint8 // hookEgress, hookIngress
	_        uint16
}

// fragmentOf mirrors struct px_fragment_of.
type fragmentOf struct {
	Seen uint64
	Flow flow // of the first fragment, which has ports
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
