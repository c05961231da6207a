// SPDX-License-Identifier: Apache-2.0

package memtrim

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

var garbage []byte

// What is spare is garbage before a collection and free after it. It runs before the tests that trim.
func TestSpare(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	debug.FreeOSMemory()
	few := spare()
	for range 4 << 20 >> 16 {
		garbage = make([]byte, 64<<10)
	}
	dead := spare()
	runtime.GC()
	free := spare()
	debug.FreeOSMemory()
	if least := few + 3<<20; dead < least || free < least || few > minSpare || spare() > minSpare {
		t.Errorf("%d bytes, then %d of garbage, %d after a collection, %d after they were given back",
			few, dead, free, spare())
	}
}

// During a burst of work the collector runs once for many MiB, whatever little is live, and an idle process has little
// more than what is live.
func TestBurst(t *testing.T) {
	if os.Getenv("GOGC") != "" {
		t.Skip("GOGC is set")
	}
	Start(0)
	percent := func() uint64 { return read("/gc/gogc:percent") }
	wait.Until(t, "the process is idle", func() bool { return percent() == idlePercent })
	Busy()
	wait.Until(t, "the process is busy", func() bool { return percent() > idlePercent })
	before, allocated := read("/gc/cycles/total:gc-cycles"), read("/gc/heap/allocs:bytes")
	for read("/gc/heap/allocs:bytes")-allocated < 4*headroom {
		garbage = make([]byte, 64<<10)
	}
	if cycles := read("/gc/cycles/total:gc-cycles") - before; cycles > 8 {
		t.Errorf("%d collections for %d MiB", cycles, 4*headroom>>20)
	}
	wait.Until(t, "the process is idle again", func() bool { return percent() == idlePercent })
	Busy()
	wait.Until(t, "the process is busy again", func() bool { return percent() > idlePercent })
	wait.Until(t, "the work is over, though the process never stops allocating", func() bool {
		garbage = make([]byte, 64<<10)
		return percent() == idlePercent
	})
}
