// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk"
)

// Names of maps in the data plane.
const (
	mapRecords  = "records"
	mapBlocks   = "blocks"
	mapAllowed  = "allowed"
	mapFuse     = "fuse"
	mapHarmless = "harmless"
	mapWindows  = "windows"
	mapCounts   = "counts"
	mapVerdicts = "verdicts"
	mapModels   = "models"
	mapActive   = "active"
)

const (
	sums      = 16 // CLS_SUMS
	slices4   = 4  // CLS_SLICES
	valuesMax = 32 // CLS_VALUES
	before    = 6  // CLS_BEFORE
	seenMax   = 4  // CLS_SEEN
)

// source mirrors struct cls_source; ports are in network byte order.
type source struct {
	Addr, Local     [16]byte // IPv4 as ::ffff:a.b.c.d; of a flow, the remote end and the service's
	Port, LocalPort [2]byte  // 0 for ICMP
	Ifindex         uint32
	Pan             uint16 // PAN identifier, host byte order
	Proto, Kind     uint8  // IANA number, of flows; index in extractors
}

// bounds mirrors struct cls_range, slice struct cls_slice, seen struct cls_seen.
type (
	bounds struct{ Low, High uint32 }
	slice  struct {
		Sum         [sums]uint64
		Length, Gap bounds
	}
	seen struct{ Tag, Ms uint32 }
)

// record mirrors struct cls_record.
type record struct {
	First, Last          uint64         // of the first and the last packet: ns, CLOCK_MONOTONIC
	Slice, Judged        uint64         // numbers of the slice that it is in, and of the window that was evaluated last
	Armed                uint64         // number of the last slice that lapsing knows, plus 1
	Sum                  [sums]uint64   // since First; enum cls_rpl_sum or cls_flow_sum
	Past                 [slices4]slice // by number modulo slices4
	Before               [before]uint32 // the first sums, over the last whole window
	Pending              uint32         // packets since the last evaluation
	Hits                 uint32         // bit 0: the last evaluation was against it, bit 1: the one before, ...
	Version, Class       uint32         // of the model, 0: never evaluated; index in its classes
	Score                int32
	Suspicious, Opener   uint8         // booleans; Opener: the service's side opened the flow
	DodagVersion, HasDio uint8         // of its last DIO, if HasDio
	Rank                 uint16        // host byte order, if HasDio
	ServicePort          [2]byte       // that the opening packet went to, network byte order
	Seen                 [seenMax]seen // newest first
	Span                 uint32        // config that Slice and Past are of
}

// block mirrors struct cls_block.
type block struct {
	Since, Until     uint64 // ns, CLOCK_MONOTONIC; Until 0: until unblocked
	Packets, Dropped uint64 // that met it; of these
	Due              uint64 // ns: when the next packet is within the rate
	Version, Class   uint32 // of the model, 0: the operator
	Score            int32
	Action           uint8 // index in actions
	Zero             [3]uint8
}

// fuse mirrors struct cls_fuse.
type fuse struct {
	Blown                 uint64 // ns, CLOCK_MONOTONIC; 0: intact
	Cause, Blocked        uint32 // index in fuseCauses; entries in blocks
	Window                uint64 // number of the window that the rest is of
	Judged, SourcesBefore uint32 // sources, without Held; those of the window before, with blocked ones
	Packets, Dropped      uint64 // counted if the limit is below 100 %
	Admitted, Promoted    uint32 // sources that got a record at once; after probation
	Held, Zero            uint32 // sources that were blocked when the window began
}

// window mirrors struct cls_window.
type window struct {
	Time   uint64           // its end, ns, CLOCK_MONOTONIC
	Values [valuesMax]int32 // features, in the order of the extractor's names
}

// event mirrors struct cls_event.
type event struct {
	Time                         uint64 // end of the window, ns, CLOCK_MONOTONIC
	Source                       source
	Kind, Action, Allowed, Cause uint8  // index in eventKinds; in actions; on the allow-list; index in fuseCauses
	Version, Class               uint32 // of the model; index in its classes
	Score                        int32
	Hits                         uint32           // as in record
	Values                       [valuesMax]int32 // as in window
}

// prefix mirrors struct cls_prefix.
type prefix struct {
	Len, Half uint32   // bits, Half included
	Addr      [16]byte // IPv4 as ::ffff:a.b.c.d
}

// Names of enums, by value.
var (
	extractors = []string{"rpl", "flow"}
	actions    = []string{"event", "mark", "rateLimit", "drop"}
	eventKinds = []string{"evaluated", "suspicious", "cleared", "fuse"}
	fuseCauses = []string{"", "sources", "sourceShare", "packetShare"}
	rplSums    = []string{"dis", "dio", "dao", "daoAck", "control", "other", "repeats", "bytes", "multicast", "versions",
		"ranks", "secured", "fragments"}
	flowSums   = []string{"packetsForward", "packetsBackward", "bytesForward", "bytesBackward"}
	countNames = []string{"packets", "not_ours", "truncated", "malformed", "no_source", "secured", "repeats", "messages",
		"probation", "admitted",
		"evaluated", "empty", "no_model", "positive", "no_room", "allowed", "watched", "marked", "limited", "dropped",
		"dropped_secured",
		"both_harmless", "both_positive", "only_live", "only_shadow", "same_class"}
)

const (
	kindEvaluated = iota
	kindSuspicious
	kindCleared
	kindFuse
)

const (
	causeSources = 1
	causeShare   = 2
)

const (
	countEvaluated    = 10
	countNoModel      = 12
	countPositive     = 13
	countNoRoom       = 14
	countBothHarmless = 21
	countBothPositive = 22
	countOnlyLive     = 23
	countOnlyShadow   = 24
	countSameClass    = 25
	counts            = 32
)

// named is a value of an enum by name.
func named[N ~uint8 | ~uint32](names []string, n N) string {
	if int(n) < len(names) {
		return names[n]
	}
	return fmt.Sprint(n)
}

// wall is the time of day of a moment of the data plane's clock.
func wall(at uint64) time.Time {
	return time.Now().Add(time.Duration(int64(at - sdk.Monotonic()))).UTC().Truncate(time.Millisecond)
}

const batch = 64 // a record has 800 bytes

// remove deletes an element that may have gone already.
func remove(maps sdk.Maps, name string, key any) (was bool, err error) {
	m, err := maps.Get(name)
	if err != nil {
		return false, err
	}
	switch err := m.Delete(key); {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("delete from map %s: %w", name, err)
	}
	return true, nil
}
