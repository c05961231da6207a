// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// stepping is the log of an agent that blocks during a change until the test reads: a pipe with space for one line.
type stepping struct {
	log  *os.File
	copy *os.File
	goOn chan struct{}
	over chan struct{} // the agent has ended and all was read

	mu    sync.Mutex
	steps []string // since stopAfter
	most  int
	full  chan struct{} // the maximum number of steps was read
}

// startStepping starts an agent like start.
func (n *node) startStepping() *stepping {
	n.T.Helper()
	var ends [2]int
	err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_DIRECT) // each line is a packet, and takes a page
	if err == nil {
		_, err = unix.FcntlInt(uintptr(ends[1]), unix.F_SETPIPE_SZ, os.Getpagesize())
	}
	if err != nil {
		n.T.Fatal(err)
	}
	s := &stepping{log: os.NewFile(uintptr(ends[0]), "log"), goOn: make(chan struct{}), over: make(chan struct{}),
		full: make(chan struct{})}
	if s.copy, err = os.OpenFile(n.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		n.T.Fatal(err)
	}
	go s.read()
	n.Stderr = os.NewFile(uintptr(ends[1]), "log")
	n.start("--log-level", "debug")
	n.Stderr.Close()
	n.Stderr = nil
	return s
}

func (s *stepping) read() {
	defer close(s.over)
	defer s.log.Close()
	defer s.copy.Close()
	line := make([]byte, os.Getpagesize())
	for {
		size, err := s.log.Read(line)
		if err != nil {
			return
		}
		_, _ = s.copy.Write(line[:size])
		if s.note(string(line[:size])) {
			close(s.full)
			<-s.goOn
		}
	}
}

// note reports whether to stop reading.
func (s *stepping) note(line string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, step, ok := strings.Cut(line, "msg=step ")
	if ok {
		s.steps = append(s.steps, step)
	}
	return ok && len(s.steps) == s.most
}

// killAfter applies resources to an agent that is killed after it has started this many steps, or one more; or after
// the response, if it has fewer. It returns the started steps, of which all but the last one are complete.
func (n *node) killAfter(s *stepping, most int, resources ...any) (result, []string) {
	n.T.Helper()
	s.mu.Lock()
	s.steps, s.most = nil, most
	s.mu.Unlock()
	answered := make(chan result, 1)
	go func() { answered <- n.tryApply(resources...) }()
	select {
	case <-s.full:
		n.Kill()
	case r := <-answered:
		answered <- r
		n.Kill()
	}
	close(s.goOn)
	<-s.over
	return <-answered, s.steps
}
