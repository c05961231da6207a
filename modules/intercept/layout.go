// SPDX-License-Identifier: Apache-2.0

package intercept

// Numbers of class.h, deliver.h and record.h.
const (
	maxClasses  = 32
	maxRings    = 16
	listLength  = 8
	conditions  = 4
	reasons     = 8 // of packets that are not forwarded
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
var actions = [...]string{"pass", "drop", "answer", "copy", "steal", "mark", "forward"}

// rangeEntry mirrors struct icpt_range, and so on.
type rangeEntry struct{ First, Last uint16 }

type prefixEntry struct{ Addr, Mask [16]byte }

type bytesEntry struct {
	Offset, Len uint16 // in the payload; bytes that count, 0: no condition
	Zero        uint32
	Bytes, Mask [wordBytes]byte // in memory order; Bytes &^ Mask is 0
}

type classEntry struct {
	Identity                     uint64 // key of its counts
	Directions, Family           uint8  // enum icpt_direction, bits; 4, 6, or 0 for both
	Proto, HasProto              uint8  // IANA number, if HasProto
	Action, Stopped              uint8  // enum icpt_action; boolean
	Socket, Ring                 uint8  // 1: may go to AF_XDP sockets; slot that programs know, or ICPT_NO_RING
	ToPorts, FromPorts, To, From uint8  // lengths of the lists; an empty one matches everything
	Priority, MaxBytes           uint32 // of the socket buffer; bytes of a frame that are delivered
	Fallback                     uint32 // us that a record may wait before packets are answered; 0: they are not
	Label, Zero                  uint32 // that a module before has given packets, 0: any or none
	ToPort, FromPort             [listLength]rangeEntry
	Payload                      [conditions]bytesEntry
	ToAddr, FromAddr             [listLength]prefixEntry
	Target                       targetEntry
}

// targetEntry is where packets of a class are forwarded to.
type targetEntry struct {
	Addr          [16]byte // IPv4: the first 4
	Ifindex       uint32   // 0: the interface is not there
	Port          [2]byte  // network byte order; 0: the packet's
	Family, Named uint8    // 4, 6, or 0 for the packet's address; 1: the class names an interface
}

type tableEntry struct {
	Draining, Rings     uint32                    // 1: a CPU takes control messages; slots in use
	Version, N          uint32                    // packets are compared with the first N of Classes[Version&1]
	AnyPort, Directions uint32                    // 1: Ports says nothing; those that some class has
	Ports               [2048]uint32              // bits by destination port: some class may match it
	OfRing              [maxRings]uint8           // index of the class with a ring
	Classes             [2][maxClasses]classEntry // by version
	Identity, Zero      uint32                    // of the values, for the control plane
}

type flowEntry struct{ Seq, Lost, Position, Since, Last uint64 }

type countsEntry struct {
	Packets, Bytes, Delivered, Lost, Unread, Unmarked, Answered, Fallbacks uint64
	Forwarded                                                              uint64
	Unforwarded                                                            [reasons]uint64
	Gaps                                                                   [buckets]uint64
}

// Record is what is before a frame in a class's ring.
type Record struct {
	Seq, Time, Lost       uint64 // number in this ring, from 0 on; ns, CLOCK_MONOTONIC; packets without room so far
	Len, CapLen           uint32 // bytes of the frame; of these, those that follow
	L3, L4, Payload, Slot uint16 // offsets from the start of the frame; slot of the class
	Ifindex, Flags        uint32 // that the chain is attached to; ICPT_*
	CPU, PID              uint32 // where the packet was met; the thread that ran there, 0: idle or unknown
}

// late is a packet that came after its deadline.
type late struct {
	Seq, T1, T2, Waited      uint64   // ns: met, received; how long the program was runnable and did not run
	CPU1, CPU2, PID1, Queued uint32   // of T1 and of T2; thread of CPU1; records that waited behind
	Voluntary, Involuntary   uint32   // context switches of the program since the record before
	Comm1                    [16]byte // name of PID1, ends with 0
}

// state is a class's page.
type state struct {
	Generation, Deadline, Watchdog uint64 // of the config; ns; ns
	Zero0, Stopped, Doorbell       uint32 // booleans
	Begun                          uint32 // Identity of the table
	Zero1                          [6]uint32
	Waiting, PID                   uint32 // enum icpt_waiting; thread that receives
	Heartbeat, Received, Late      uint64 // ns: when it last examined the ring; records; of these, late ones
	Missed, Longest                uint64 // lost packets that it knows of; ns, T2 - T1
	Zero2                          [2]uint64
	Delay                          [buckets]uint64 // T2 - T1 in ns, by sdk.Histogram
	Lates                          uint64          // so far; the last one is in Last[(Lates-1)%lates]
	Last                           [lates]late
}

// control64 is a control message, struct icpt_control.
type control64 struct {
	Op, Index   uint32 // enum icpt_op; of a condition, for operations on one
	Value       uint64
	Bytes, Mask [wordBytes]byte
}
