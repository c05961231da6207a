// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// backgroundNice leaves a tenth of a busy CPU.
const backgroundNice = 10

// background is a thread that lives as long as the process: only a privileged process may raise a priority again, and
// with a thread that ends the kernel kills the programs that it has started (PR_SET_PDEATHSIG).
var background = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), backgroundNice) // at the usual one it is done as well
		for do := range work {
			do()
		}
	}()
	return work
})

// inBackground executes what keeps a CPU busy for long and no change waits for, such as a verification, at a low
// priority, one after the other: packets, programs and the next change come first.
func inBackground(do func()) {
	done := make(chan struct{})
	background() <- func() { defer close(done); do() }
	<-done
}
