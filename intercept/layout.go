// SPDX-License-Identifier: Apache-2.0

package intercept

// Numbers and layouts of modules/intercept/record.h; a test compares them.
const (
	pageBytes   = 4096
	buckets     = 160
	lates       = 16
	tciShift    = 16
	ringHeader  = 8
	busyBit     = 1 << 31
	discardBit  = 1 << 30
	opStart     = 1
	opStop      = 2
	opAction    = 3
	opPriority  = 4
	opMaxBytes  = 5
	opDeadline  = 6
	opPorts     = 7
	opPayload   = 8
	wordBytes   = 8
	controlRing = 4096
)

// record precedes the bytes of a packet in a ring, in host byte order. Times are ns of CLOCK_MONOTONIC. Seq and Lost
// count the packets of the class, and those that were lost because the ring was full. L3, L4 and Payload are offsets
// from the start of the frame.
type record struct {
	Seq, Time, Lost       uint64
	Len, CapLen           uint32
	L3, L4, Payload, Slot uint16
	Ifindex, Flags        uint32
	CPU, PID              uint32
}

// lateEntry is a packet that missed the deadline. T1 and T2 are its times in the kernel and in the program, Waited is
// the time that the thread was runnable but not running, all in ns. Queued is the number of packets after it in the
// batch, Comm1 the name of the thread that ran at T1, terminated by a zero byte.
type lateEntry struct {
	Seq, T1, T2, Waited      uint64
	CPU1, CPU2, PID1, Queued uint32
	Voluntary, Involuntary   uint32
	Comm1                    [16]byte
}

// statistics are the receiver's counters, which it copies when it follows a new configuration.
type statistics struct {
	Received, Late, Missed, Longest uint64
	Zero2                           [2]uint64
	Delay                           [buckets]uint64
	Lates                           uint64
	Last                            [lates]lateEntry
}

// state is the page of a class that data plane and receiver share. The module writes the first cache line except
// Doorbell, the receiver writes the rest. Times are in ns.
type state struct {
	Generation, Deadline, Watchdog uint64
	Zero0, Stopped, Doorbell       uint32
	Zero1                          [7]uint32
	Waiting, PID                   uint32
	Heartbeat                      uint64
	Log                            statistics
}

// controlEntry is a message that changes a class; Op selects the change. The data plane reads it from a BPF user ring
// buffer before it classifies the next packet.
type controlEntry struct {
	Op, Index   uint32
	Value       uint64
	Bytes, Mask [wordBytes]byte
}
