// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/binary"
	"testing"
	"time"
)

func payload(seq uint64, stamps, generation uint32) []byte {
	p := make([]byte, PayloadSize)
	binary.NativeEndian.PutUint64(p, seq)
	binary.NativeEndian.PutUint32(p[OffsetStamps:], stamps)
	binary.NativeEndian.PutUint32(p[OffsetGen:], generation)
	return p
}

func TestAccount(t *testing.T) {
	s := &stream{sent: 6, took: time.Second}
	for _, p := range [][]byte{
		payload(0, 1, 1), // a probe
		payload(1, 1, 1),
		payload(2, 1, 2),
		payload(2, 1, 2), // a duplicate
		payload(3, 0, 0), // not processed by the module
		payload(4, 2, 3), // processed twice
		payload(6, 1, 2), // 5 is lost; generation 2 after 3
		payload(6, 1, 2)[:8],
	} {
		s.tally.add(p)
	}
	got := s.account(Losses{})
	want := StreamStats{Sent: 6, Received: 6, Lost: 1, Duplicated: 1, Unprocessed: 1, Doubled: 1,
		Generations: 3, Backward: 1, Rate: 6}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if !s.misses(Losses{}) || s.misses(Losses{Socket: 1}) || s.misses(Losses{Backlog: 1}) { // 5
		t.Error("it waits for lost packets, or not for missing ones")
	}
}
