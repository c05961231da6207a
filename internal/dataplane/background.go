// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// backgroundNice leaves the background a tenth of a busy CPU.
const backgroundNice = 10

// background is a thread that lives as long as the process: only a privileged process may raise a priority again, and
// when a thread ends, the kernel kills the programs that it has started (PR_SET_PDEATHSIG).
var background = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), backgroundNice) // if this fails, it runs at the usual priority
		for do := range work {
			do()
		}
	}()
	return work
})

// inBackground executes long work that no change waits for, such as a verification, sequentially and at a low priority:
// packets, programs and the next change have precedence.
func inBackground(do func()) {
	done := make(chan struct{})
	background() <- func() { defer close(done); do() }
	<-done
}
