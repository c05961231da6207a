// SPDX-License-Identifier: Apache-2.0

// Package memtrim reduces the resident memory of processes that are idle most of the time: after a burst of work it
// returns free heap memory to the kernel. During the burst it keeps the garbage collector from taking longer than the
// work itself.
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
	minSpare  = 2 << 20         // free or garbage: below that a trim returns less than its collections cost
	busyFor   = 2               // intervals after Busy, even if the process never stops allocating: queries do that
	settle    = 5 * time.Second // until timers have dropped what they keep for the next change, and connections are closed
	halvings  = 3               // collections then: each halves the stacks of which less than a fourth is in use

	idlePercent = 25      // GOGC of a process that is idle, or makes what stays: close together it takes fewer pages
	headroom    = 8 << 20 // what a busy process allocates between two collections; a change allocates some MiB
	smallHeap   = 4 << 20 // the runtime counts at least as much as live
)

// working is sent by Busy.
var working = make(chan struct{}, 1)

// Start adapts GOGC, unless the environment sets it, and trims memory in the background from then on. The process
// counts as busy after a number of collections in one burst of work, 0: after Busy only.
func Start(collections int) {
	setPercent := func(percent int) { debug.SetGCPercent(percent) }
	if os.Getenv("GOGC") != "" {
		setPercent = func(int) {}
	}
	setPercent(idlePercent)
	go watch(setPercent, collections)
}

// Busy announces work that leaves little behind, such as a change of what is there.
func Busy() {
	select {
	case working <- struct{}{}:
	default:
	}
}

// watch trims when the process is idle, and then sleeps until there is work or the garbage collector has run: without a
// collection there is little to return.
func watch(setPercent func(int), collections int) {
	for {
		awaitIdle(setPercent, collections)
		setPercent(idlePercent)
		if spare() > minSpare {
			debug.FreeOSMemory()
			select {
			case <-working:
				Busy()
				continue
			case <-time.After(settle):
			}
			for range halvings {
				debug.FreeOSMemory()
			}
		}
		select {
		case <-working:
			Busy()
		case <-collected():
		}
	}
}

// spare is what the heap has beyond what was live at the last collection, in bytes. Between two collections it stays
// about the same: free memory becomes garbage.
func spare() int64 {
	return int64(read("/memory/classes/heap/free:bytes") + read("/memory/classes/heap/objects:bytes") -
		read("/gc/heap/live:bytes"))
}

// awaitIdle returns when the process has allocated nearly nothing for an interval.
func awaitIdle(setPercent func(int), collections int) {
	next := time.NewTicker(interval)
	defer next.Stop()
	busy, collection := 0, collected()
	for seen, last := 0, read("/gc/heap/allocs:bytes"); ; {
		if busy > 0 || collections > 0 && seen >= collections {
			setPercent(int(max(idlePercent, 100*headroom/max(read("/gc/heap/live:bytes"), smallHeap))))
		} else {
			setPercent(idlePercent)
		}
		select {
		case <-working:
			busy = busyFor
		case <-collection:
			seen++
			collection = collected()
		case <-next.C:
			busy--
			now := read("/gc/heap/allocs:bytes")
			if now-last < idleBytes {
				return
			}
			last = now
		}
	}
}

// collected is closed by the next garbage collection.
func collected() <-chan struct{} {
	done := make(chan struct{})
	runtime.AddCleanup(new([64]byte), func(done chan struct{}) { close(done) }, done)
	return done
}

func read(metric string) uint64 {
	sample := []metrics.Sample{{Name: metric}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}
