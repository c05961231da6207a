// SPDX-License-Identifier: Apache-2.0

// Package lean keeps a process that waits most of its life small: after a change, when it has become quiet, it gives back
// what only the change needed.
package lean

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
	look  = 2 * time.Second
	quiet = 64 << 10 // bytes allocated between two looks: nothing is going on
	worth = 2 << 20  // bytes allocated since the last time: there may be something to give back
)

// Keep has the collector run soon rather than late, unless the environment says otherwise, and watches the process until it
// ends.
func Keep() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(25) // changes are rare, and may cost a little more
	}
	go watch()
}

// watch looks while something goes on, and then sleeps until the collector has run: where it does not, there is little to give back.
func watch() {
	var trimmed uint64
	for ; ; <-collected() {
		last := allocated()
		for busy := true; busy; {
			time.Sleep(look)
			now := allocated()
			busy = now-last >= quiet
			last = now
		}
		if last-trimmed > worth {
			debug.FreeOSMemory()
			dropProgram()
			trimmed = allocated()
		}
	}
}

// collected is closed by the next run of the collector.
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

// dropProgram takes the pages of the program file out of this process: the start and a change touch a large part of them, and
// waiting a small one, which comes back from the page cache when it is touched, page by page instead of 16 at a time. It is
// safe because these mappings are never written. What it cannot do is no harm.
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

// readOnly reads a line such as
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
