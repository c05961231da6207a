// SPDX-License-Identifier: Apache-2.0

// Package memtrim reduces the resident memory of processes that are idle most of the time: after a burst of work it
// returns free heap memory to the kernel.
package memtrim

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	interval  = 2 * time.Second // between two reads of the allocation counter
	idleBytes = 1 << 20         // allocated in an interval: below that the process is idle; a change allocates more
	minBytes  = 512 << 10       // allocated since the last trim: below that trimming is not worth it
	settle    = 5 * time.Second // until timers have dropped what they keep for the next change, and connections are closed
)

// Start lowers GOGC, unless the environment sets it, and trims memory in the background from then on.
func Start() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25) // changes are rare and may take a little longer
	}
	go watch()
}

// watch polls while the process is busy, trims when it is idle, and then sleeps until the garbage collector has run:
// without a collection there is little to return.
func watch() {
	var trimmed uint64
	for ; ; <-collected() {
		last := allocated()
		for busy := true; busy; {
			time.Sleep(interval)
			now := allocated()
			busy = now-last >= idleBytes
			last = now
		}
		if last-trimmed > minBytes {
			debug.FreeOSMemory()
			time.Sleep(settle)
			debug.FreeOSMemory()
			trimmed = allocated()
		}
	}
}

// collected is closed by the next garbage collection.
func collected() <-chan struct{} {
	done := make(chan struct{})
	runtime.AddCleanup(new([64]byte), func(done chan struct{}) { close(done) }, done)
	return done
}

func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
