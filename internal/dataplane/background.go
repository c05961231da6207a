// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// backgroundNice leaves a tenth of a busy CPU.
const backgroundNice = 10

// inBackground executes what keeps a CPU busy for long and no change waits for, such as a verification, at a low
// priority: packets, programs and the next change come first. The thread ends with it, as only a privileged process
// may raise a priority again.
func inBackground(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		_ = unix.Setpriority(unix.PRIO_PROCESS, unix.Gettid(), backgroundNice) // at the usual one it is done as well
		do()
	}()
	<-done
}
