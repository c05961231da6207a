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

// record precedes the bytes of a packet in a ring, in the byte order of the machine. Times are CLOCK_MONOTONIC in ns;
// Seq and Lost count the packets of the class and those that found no room; L3, L4 and Payload are offsets from the
// frame's begin.
type record struct {
	Seq, Time, Lost       uint64
	Len, CapLen           uint32
	L3, L4, Payload, Slot uint16
	Ifindex, Flags        uint32
	CPU, PID              uint32
}

// lateEntry is one packet that missed the deadline: T1 and T2 are its times in the kernel and at the program, Waited
// is how long the thread was runnable and not running meanwhile, all in ns. Queued is how many records waited behind
// it, Comm1 the thread that had the CPU, ended by a zero byte.
type lateEntry struct {
	Seq, T1, T2, Waited      uint64
	CPU1, CPU2, PID1, Queued uint32
	Voluntary, Involuntary   uint32
	Comm1                    [16]byte
}

// log is what a receiver takes along into a new configuration.
type log struct {
	Received, Late, Missed, Longest uint64
	Zero2                           [2]uint64
	Delay                           [buckets]uint64
	Lates                           uint64
	Last                            [lates]lateEntry
}

// state is the page of a class that the data plane and the receiver share in memory. The first line is written by the
// module, but for Doorbell, and the rest by the receiver; times are in ns.
type state struct {
	Generation, Deadline, Watchdog uint64
	Zero0, Stopped, Doorbell       uint32
	Zero1                          [7]uint32
	Waiting, PID                   uint32
	Heartbeat                      uint64
	Log                            log
}

// controlEntry is a message of a program that changes one class: Op says what. The data plane takes it from a BPF user
// ring buffer before it classifies the next packet.
type controlEntry struct {
	Op, Index   uint32
	Value       uint64
	Bytes, Mask [wordBytes]byte
}
