// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/timeoutio"
	"github.com/kerb-edge/kerb/sdk"
)

// The kernel keeps 1 KiB for each socket in a SOCKHASH. A module with the program age reports every agePeriod which
// ones are idle, and in its ring buffer returning which ones have become active. User space removes and inserts them:
// syscall programs may not, and nothing else runs while a socket is idle.
const agePeriod = time.Second

// IdleAging ages the idle sockets of an attached module until Close.
type IdleAging struct {
	sockets *sockets
	cancel  context.CancelFunc
	done    chan struct{}
}

// AgeIdle removes idle sockets from the map of a chain, and inserts those that become active, until Close. It calls
// gaveUp if that fails for good. It returns nil if the chain is not there, or its module has no program for it.
func (d *Dataplane) AgeIdle(spec chain.Spec, gaveUp func(error)) (*IdleAging, error) {
	s, err := openSockets(d.layout.chain(spec))
	if err != nil {
		return nil, fmt.Errorf("open programs: %w", err)
	}
	if s.progs[agePin] == nil {
		s.Close()
		return nil, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	t := &IdleAging{sockets: s, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		if err := s.ageIdle(ctx, agePeriod); err != nil {
			gaveUp(err)
		}
	}()
	return t, nil
}

// Close may be called for nil.
func (t *IdleAging) Close() {
	if t == nil {
		return
	}
	t.cancel()
	<-t.done
	t.sockets.Close()
}

// ageIdle runs age periodically and answers returning, until ctx ends, or there is an error: then no socket is removed
// any more.
func (s *sockets) ageIdle(ctx context.Context, every time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	returned := make(chan error, 1)
	go func() { returned <- s.answer(ctx) }()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if err := s.age(); err != nil {
			cancel()
			return errors.Join(err, <-returned)
		}
		select {
		case <-ctx.Done():
			return <-returned
		case err := <-returned:
			return err
		case <-tick.C:
		}
	}
}

// age takes out the sockets that the program finds, and those that an agent had found which was killed. More than fit
// into drained are found a second later.
func (s *sockets) age() error {
	if _, err := s.progs[agePin].Run(&ebpf.RunOptions{}); err != nil {
		return fmt.Errorf("find idle sockets: %w", err)
	}
	_, err := s.letGo()
	return err
}

// returning is a record of the ring buffer: a socket by its key, which is its cookie, and where it is.
type returning struct {
	Cookie  uint64
	PID, FD uint32 // in the first pid namespace
}

// returnTime is how long one return may take that others wait for.
const returnTime = time.Second

// answer puts sockets back.
func (s *sockets) answer(ctx context.Context) error {
	var calls timeoutio.Limiter
	for raw, err := range sdk.PromptEvents(ctx, s.maps[returningMap]) {
		if err != nil {
			return err
		}
		var r returning
		if _, err := binary.Decode(raw, binary.NativeEndian, &r); err != nil || s.isOff() {
			continue
		}
		_, err := timeoutio.Do(&calls, returnTime, func() (struct{}, error) { return struct{}{}, s.putBack(r) })
		switch { // else it has ended, or was closed; who still talks asks again
		case errors.Is(err, os.ErrPermission) || errors.Is(err, unix.ENOSYS):
			return fmt.Errorf("take a socket of process %d, which needs CAP_SYS_PTRACE, kernel.yama.ptrace_scope below 3 and "+
				"pidfd_getfd(2): %w", r.PID, err)
		case errors.Is(err, timeoutio.ErrTooManyBlocked):
			return fmt.Errorf("take sockets of processes: %w", err)
		}
	}
	return nil
}

var errNotIt = errors.New("something else has its number by now")

func (s *sockets) putBack(r returning) error {
	// To close a file may wait for its file system, without an end that a signal could make: nothing but sockets is taken.
	if is, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", r.PID, r.FD)); err != nil ||
		!strings.HasPrefix(is, "socket:[") {
		return errors.Join(err, errNotIt)
	}
	process, err := unix.PidfdOpen(int(r.PID), 0)
	if err != nil {
		return err
	}
	defer unix.Close(process)
	fd, err := unix.PidfdGetfd(process, int(r.FD), 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
	if err != nil {
		return err
	}
	if cookie != r.Cookie {
		return errNotIt
	}
	return s.maps[socketsPin].Update(r.Cookie, uint64(fd), ebpf.UpdateNoExist)
}
