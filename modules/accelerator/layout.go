// SPDX-License-Identifier: Apache-2.0

package accelerator

// What layout.h says, in Go. A test compares both.

// Names of maps.
const (
	mapConfig       = "config"
	mapMembers      = "members"
	mapPorts        = "ports"
	mapVisibles     = "visibles"
	mapExecutables  = "executables"
	mapDestinations = "destinations"
	mapEnds         = "ends"
	mapCounts       = "counts"
	mapShares       = "shares"
	mapUnjudged     = "unjudged"
	mapGuarded      = "guarded"
)

const (
	maxVisibles    = 32
	portWords      = 1 << 16 / 64
	unknownService = 0xffffffff // the other service is not known
	theNode        = 0          // sockets of cgroups that are in no service
)

// Modes.
const (
	modeOff = iota
	modeAdaptive
	modeAll
)

type configEntry struct {
	Mode, Visibles, Warm      uint32 // modeOff ...; elements of visibles; answers before the first redirect
	PassMessages, PassBytes   uint32 // beyond, a side without an answer continues by TCP
	LeaveMessages, LeaveBytes uint32 // beyond, the connection leaves for good
	Backlog, MinTurns, Retry  uint32 // bytes in the receiver's queue; 1/16 turns; one of this many enrols all the same
	Quota                     uint32 // connections of one service's clients; 0: any
	Idle                      uint32 // in 2^20 ns
}

// Flags of services: only connections that stay in the namespace; the data plane knows the programs that listen there.
const (
	within   = 1
	searched = 2
)

type serviceEntry struct{ ID, Flags uint32 }

// visibleEntry has addresses in network byte order.
type visibleEntry struct {
	Address, Mask [16]byte
	First, Last   uint16 // ports of the server, host byte order
	_             uint32
}

// fileKey is an executable file on a mount.
type fileKey struct {
	Inode              uint64
	Device, Generation uint32 // major << 20 | minor; of the contents, as inode numbers come again
}

// Verdicts on executables.
const (
	asked   = 1
	safe    = 2
	unsafe  = 3
	caught  = 4
	allowed = 5 // even if it blocks in recv
)

type executableEntry struct {
	Verdict, Reason uint32 // asked ...; index in reasons, of caught
	Since           uint64 // ns of CLOCK_MONOTONIC
	Blocked, Zero   uint32
}

type addressKey struct {
	Netns   uint64
	Address [16]byte
	Port    uint32
	_       uint32
}

type destinationEntry struct{ Offers, Turns, Passed, _ uint32 }

// Why a connection is plain, by what the data plane calls it, and what people read.
var reasons = [...]string{"", "port", "visible", "policy", "unexamined", "executable", "short", "remote", "full",
	"ambiguous", "option", "waitall",
	"urgent", "threads", "stream", "closed", "modeOff", "blocking", "foreignMap", "quota", "uring", "serverUnexamined",
	"idle"}

type routeKey struct{ Client, Server uint32 }

type countsEntry struct {
	Offered, Paired, Accelerated, Left uint64
	Messages, Bytes                    uint64
	Refused                            [len(reasons)]uint64
}

// Flags of events: others than root can change the file or a directory above it; the path is longer.
const (
	changeable = 1
	truncated  = 2
)

type event struct {
	File       fileKey
	PID, Flags uint32       // that asked; changeable, truncated
	Comm       [16]byte     // name of its thread, ends with 0
	Names      [16][64]byte // of the path, the file's own first
}
