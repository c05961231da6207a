// SPDX-License-Identifier: Apache-2.0

package swap

import (
	"errors"
	"os"
	"testing"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

// The stream receives every packet except those that the kernel counts as dropped by a full buffer. It distinguishes a
// hook that misses packets during replacements from one that does not.
func TestStreamUnderReplacement(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
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
		a, err := traffic.Stream(client, service, streamPort, func() error {
			_, err := replaceAll(t.Context(), rep, replacementsNaive)
			return err
		})
		if err := errors.Join(err, rep.Close()); err != nil {
			t.Fatal(err)
		}
		if a.Sent == 0 || a.Lost > a.Explained.Socket+a.Explained.Backlog || a.Duplicated != 0 || a.Doubled != 0 {
			t.Errorf("reattach %v: %+v", reattach, a)
		}
		if (a.Unprocessed > 0) != reattach {
			t.Errorf("reattach %v: %d packets unprocessed", reattach, a.Unprocessed)
		}
	}
}
