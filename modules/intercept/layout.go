// SPDX-License-Identifier: Apache-2.0

package intercept

// Numbers of class.h, deliver.h and record.h.
const (
	maxClasses  = 32
	maxRings    = 16
	listLength  = 8
	conditions  = 4
	wordBytes   = 8 // of a condition
	buckets     = 160
	lates       = 16
	queues      = 64
	pageBytes   = 4096
	noRing      = 0xff
	maxFrame    = 16384
	isIngress   = 1
	isEgress    = 2
	controlSize = 4096
)

// Actions by number.
var actions = [...]string{"pass", "drop", "answer", "copy", "steal", "mark"}

// rangeEntry mirrors struct icpt_range, and so on.
type rangeEntry struct{ First, Last uint16 }

type prefixEntry struct{ Addr, Mask [16]byte }

type bytesEntry struct {
	Offset, Len uint16
	Zero        uint32
	Bytes, Mask [wordBytes]byte
}

type classEntry struct {
	Identity                                                           uint64
	Directions, Family, Proto, HasProto, Action, Stopped, Socket, Ring uint8
	ToPorts, FromPorts, To, From                                       uint8
	Priority, MaxBytes, Fallback                                       uint32
	ToPort, FromPort                                                   [listLength]rangeEntry
	Payload                                                            [conditions]bytesEntry
	ToAddr, FromAddr                                                   [listLength]prefixEntry
}

type tableEntry struct {
	Draining, Rings                 uint32
	Version, N, AnyPort, Directions uint32
	Ports                           [2048]uint32
	OfRing                          [maxRings]uint8
	Classes                         [2][maxClasses]classEntry // by version
	Identity, Zero                  uint32
}

type flowEntry struct{ Seq, Lost, Position, Since, Last uint64 }

type countsEntry struct {
	Packets, Bytes, Delivered, Lost, Unread, Unmarked, Answered, Fallbacks uint64
	Gaps                                                                   [buckets]uint64
}

// Record is what is before a frame in a class's ring.
type Record struct {
	Seq, Time, Lost       uint64
	Len, CapLen           uint32
	L3, L4, Payload, Slot uint16
	Ifindex, Flags        uint32
	CPU, PID              uint32
}

// late is a packet that came after its deadline.
type late struct {
	Seq, T1, T2, Waited      uint64
	CPU1, CPU2, PID1, Queued uint32
	Voluntary, Involuntary   uint32
	Comm1                    [16]byte
}

// state is a class's page.
type state struct {
	Generation, Deadline, Watchdog uint64
	Consumer, Stopped, Doorbell    uint32
	Begun                          uint32 // Identity of the table
	Zero1                          [6]uint32
	Waiting, PID                   uint32
	Heartbeat, Received, Late      uint64
	Missed, Longest                uint64
	Zero2                          [2]uint64
	Delay                          [buckets]uint64
	Lates                          uint64
	Last                           [lates]late
}

// control64 is a control message, struct icpt_control.
type control64 struct {
	Op, Index   uint32
	Value       uint64
	Bytes, Mask [wordBytes]byte
}
