// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

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
	Addr, Local     [16]byte
	Port, LocalPort [2]byte
	Ifindex         uint32
	Pan             uint16
	Proto, Kind     uint8
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
	First, Last, Slice, Judged uint64
	Armed                      uint64
	Sum                        [sums]uint64
	Past                       [slices4]slice
	Before                     [before]uint32
	Pending, Hits              uint32
	Version, Class             uint32
	Score                      int32
	Suspicious, Opener         uint8
	DodagVersion, HasDio       uint8
	Rank                       uint16
	ServicePort                [2]byte
	Seen                       [seenMax]seen
	Span                       uint32
}

// block mirrors struct cls_block.
type block struct {
	Since, Until, Packets, Dropped, Due uint64
	Version, Class                      uint32
	Score                               int32
	Action                              uint8
	Zero                                [3]uint8
}

// fuse mirrors struct cls_fuse.
type fuse struct {
	Blown                 uint64
	Cause, Blocked        uint32
	Window                uint64
	Judged, SourcesBefore uint32
	Packets, Dropped      uint64
	Admitted, Promoted    uint32
	Held, Zero            uint32
}

// window mirrors struct cls_window.
type window struct {
	Time   uint64
	Values [valuesMax]int32
}

// event mirrors struct cls_event.
type event struct {
	Time                         uint64
	Source                       source
	Kind, Action, Allowed, Cause uint8
	Version, Class               uint32
	Score                        int32
	Hits                         uint32
	Values                       [valuesMax]int32
}

// prefix mirrors struct cls_prefix.
type prefix struct {
	Len, Half uint32
	Addr      [16]byte
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

// monotonic is the data plane's clock.
func monotonic() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // Linux has the clock
	}
	return uint64(ts.Nano())
}

// wall is the time of day of a moment of the data plane's clock.
func wall(at uint64) time.Time {
	return time.Now().Add(time.Duration(int64(at - monotonic()))).UTC().Truncate(time.Millisecond)
}

const batch = 64 // a record has 800 bytes

// each calls do for the entries of a hash map until it returns false. Entries that come and go meanwhile may be missed
// or seen twice.
func each[K, V any](maps sdk.Maps, name string, do func(K, *V) bool) error {
	m, err := maps.Get(name)
	if err != nil {
		return err
	}
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, batch), make([]V, batch)
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			if !do(keys[i], &values[i]) {
				return nil
			}
		}
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return nil
		case errors.Is(err, unix.ENOSPC): // a hash bucket is fuller than the batch is long
			keys, values = make([]K, 2*len(keys)), make([]V, 2*len(keys))
		case err != nil:
			return fmt.Errorf("read map %s: %w", name, err)
		}
	}
}

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
