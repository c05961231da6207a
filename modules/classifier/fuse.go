// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// sharedFuse is the data plane's fuse as memory, because both sides change it.
type sharedFuse struct{ *fuse }

// shareFuse maps the fuse until its last user is done: requests may outlive their map set.
func shareFuse(maps sdk.Maps) (*sharedFuse, error) {
	m, err := maps.Get(mapFuse)
	if err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(m.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %s: mmap: %w", mapFuse, err)
	}
	s := &sharedFuse{(*fuse)(unsafe.Pointer(&memory[0]))}
	runtime.AddCleanup(s, func(memory []byte) { _ = unix.Munmap(memory) }, memory) // cannot fail for what Mmap returned
	return s, nil
}

func (s *sharedFuse) blown() bool { return atomic.LoadUint64(&s.Blown) != 0 }

// blow makes the data plane do nothing to packets any more. It reports whether it was intact.
func (s *sharedFuse) blow(cause uint32) bool {
	atomic.StoreUint32(&s.Cause, cause)
	return atomic.CompareAndSwapUint64(&s.Blown, 0, sdk.Monotonic())
}

// FuseReport is the answer of GET fuse.
type FuseReport struct {
	State   string `json:"state"`           // intact or blown
	Cause   string `json:"cause,omitempty"` // the limit, by its name in the config
	Since   string `json:"since,omitempty"`
	Blocked uint32 `json:"blocked"` // sources
	Limit   uint32 `json:"limit"`
}

func (w *running) fuseReport() FuseReport {
	out := FuseReport{State: "intact", Blocked: atomic.LoadUint32(&w.fuse.Blocked), Limit: w.config.Fuse.Sources}
	if at := atomic.LoadUint64(&w.fuse.Blown); at != 0 {
		out.State, out.Cause = "blown", named(fuseCauses, atomic.LoadUint32(&w.fuse.Cause))
		out.Since = wall(at).Format("2006-01-02T15:04:05.000Z")
	}
	return out
}

func (w *running) fuseCondition() sdk.Condition {
	r := w.fuseReport()
	if r.State == "intact" {
		return sdk.Condition{Type: "Fuse", Status: "True", Reason: "Intact"}
	}
	return sdk.Condition{Type: "Fuse", Status: "False", Reason: "Blown",
		Message: fmt.Sprintf("the model went beyond fuse.%s at %s with %d sources blocked: "+
			"nothing is done to packets until kerb module set %s fuse=intact", r.Cause, r.Since, r.Blocked, w.live.Module)}
}

// resetFuse unblocks all sources, and enables the model's actions again.
func (w *running) resetFuse() error {
	if _, err := w.unblock(func(source, *block) bool { return true }); err != nil {
		return err
	}
	atomic.StoreUint32(&w.fuse.Blocked, 0)
	atomic.StoreUint32(&w.fuse.Cause, 0)
	atomic.StoreUint32(&w.fuse.Judged, 0)
	atomic.StoreUint32(&w.fuse.SourcesBefore, 0)
	atomic.StoreUint32(&w.fuse.Held, 0)
	atomic.StoreUint64(&w.fuse.Packets, 0)
	atomic.StoreUint64(&w.fuse.Dropped, 0)
	atomic.StoreUint64(&w.fuse.Blown, 0) // last: from now on it counts
	return nil
}
