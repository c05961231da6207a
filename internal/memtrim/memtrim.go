// SPDX-License-Identifier: Apache-2.0

// Package memtrim reduces the resident memory of processes that are idle most of the time: after a burst of work it
// returns free heap memory and pages of the program file to the kernel.
package memtrim

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	interval  = 2 * time.Second // between two reads of the allocation counter
	idleBytes = 64 << 10        // allocated in an interval: below that the process is idle
	minBytes  = 2 << 20         // allocated since the last trim: below that trimming is not worth it
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
			dropProgram()
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

// dropProgram removes the pages of the program file from this process's memory. Starting and changes touch many of them;
// an idle process needs few. Those return from the page cache on access, page by page instead of 16 at a time. It is safe
// because these mappings are never written, and best effort.
func dropProgram() {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if start, length, ok := readOnly(lines.Text(), program); ok {
			drop(start, length)
		}
	}
}

// readOnly parses a line of /proc/self/maps that is a private read-only mapping of the program, such as
//
//	00400000-01c3f000 r-xp 00000000 fe:00 1234    /usr/bin/kerb
func readOnly(line, program string) (start, length uintptr, ok bool) {
	var end uintptr
	var rights string
	if !strings.HasSuffix(line, " "+program) {
		return 0, 0, false
	}
	if _, err := fmt.Sscanf(line, "%x-%x %s", &start, &end, &rights); err != nil || end <= start {
		return 0, 0, false
	}
	return start, end - start, rights[1] == '-' && rights[3] == 'p'
}

func drop(start, length uintptr) {
	for _, advice := range []uintptr{unix.MADV_RANDOM, unix.MADV_DONTNEED} {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, start, length, advice)
	}
}
