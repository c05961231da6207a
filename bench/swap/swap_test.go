// SPDX-License-Identifier: Apache-2.0

package swap

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/traffic"
	"github.com/kerb-edge/kerb/internal/netlab"
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
		payload(2, 1, 2), // again
		payload(3, 0, 0), // missed by the module
		payload(4, 2, 3), // seen twice
		payload(6, 1, 2), // 5 is lost; generation 2 after 3
		payload(6, 1, 2)[:8],
	} {
		s.tally.add(p)
	}
	got := s.account(traffic.Losses{})
	want := Account{Sent: 6, Received: 6, Lost: 1, Duplicated: 1, Unprocessed: 1, Doubled: 1,
		Generations: 3, Backward: 1, Rate: 6}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// The stream sees every packet, and tells a hook that misses packets while it
// is replaced from one that does not.
func TestStreamUnderReplacement(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := netlab.Sweep("kbswt"); err != nil {
		t.Fatal(err)
	}
	lab, err := netlab.NewIn("kbswt")
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	client, err1 := lab.Host("client", netlab.HostOptions{})
	service, err2 := lab.Host("service", netlab.HostOptions{})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	for _, reattach := range []bool{false, true} {
		rep, err := openReference(lab, service, reattach)
		if errors.Is(err, bench.ErrNotBuilt) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		a, err := Stream(client, service, func() error { _, err := replaceAll(t.Context(), rep, replacementsNaive); return err })
		if err := errors.Join(err, rep.Close()); err != nil {
			t.Fatal(err)
		}
		if a.Sent == 0 || a.Received != a.Sent || a.Duplicated != 0 || a.Doubled != 0 {
			t.Errorf("reattach %v: %+v", reattach, a)
		}
		if (a.Unprocessed > 0) != reattach {
			t.Errorf("reattach %v: %d packets unprocessed", reattach, a.Unprocessed)
		}
	}
}
