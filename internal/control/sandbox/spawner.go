// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"os/exec"
	"runtime"
	"sync"
)

type request struct {
	cmd  *exec.Cmd
	done chan<- error
}

// requests go to a thread that lives as long as the process.
var requests = sync.OnceValue(func() chan<- request {
	c := make(chan request)
	go func() {
		runtime.LockOSThread()
		for r := range c {
			r.done <- r.cmd.Start()
		}
	}()
	return c
})

// Start is cmd.Start for programs with a Pdeathsig, as those of this package. The kernel sends that signal when the
// thread ends that started the program, and Go ends threads while the process lives on. So one thread starts all.
func Start(cmd *exec.Cmd) error {
	done := make(chan error, 1)
	requests() <- request{cmd: cmd, done: done}
	return <-done
}
