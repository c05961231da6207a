// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"os/exec"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// Spawner starts programs from one thread that lives as long as it does. Programs of this package are killed when the thread
// that started them ends, and Go ends threads when it likes to.
type Spawner struct {
	requests chan request
	close    sync.Once
}

type request struct {
	cmd  *exec.Cmd
	done chan<- error
}

// NewSpawner returns a spawner. Close ends it.
func NewSpawner() *Spawner {
	s := &Spawner{requests: make(chan request)}
	go s.run()
	return s
}

// Start is cmd.Start on the spawner's thread. It must not be called after Close.
func (s *Spawner) Start(cmd *exec.Cmd) error {
	done := make(chan error, 1)
	s.requests <- request{cmd: cmd, done: done}
	return <-done
}

// Close ends the thread, and with it kills the programs that are still there.
func (s *Spawner) Close() {
	s.close.Do(func() { close(s.requests) })
}

// run does not unlock its thread, so that Go ends that with it. This does not work for the main thread: while that is held
// here, another goroutine gets another.
func (s *Spawner) run() {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		defer runtime.UnlockOSThread()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.run()
		}()
		<-ended
		return
	}
	for r := range s.requests {
		r.done <- r.cmd.Start()
	}
}
