// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// A module on sockets may have a guard: a BPF program on an LSM hook that makes calls fail which its sockets cannot
// serve. Few kernels refuse it, but without bpf among the LSMs that are active they attach it and never call it.
const (
	guardPin     = "guard"     // the program
	guardLinkPin = "guardlink" // pinned next to it, so that it goes with the chain
	guardedMap   = "guarded"   // not 0 while the kernel calls it
)

var errNoLSM = errors.New("this kernel does not call BPF programs on LSM hooks (CONFIG_BPF_LSM, and bpf in lsm= of " +
	"its command line)")

// loadGuard loads the program if the kernel lets it. The module runs without, too.
func (s *sockets) loadGuard(g *mapSet, prog *ebpf.ProgramSpec) {
	loaded, err := loadOn(g, prog)
	if err != nil {
		slog.Debug("the kernel does not load the guard", "module", g.Name, "error", err)
		return
	}
	s.progs[guardPin] = loaded
}

// attachGuard attaches the program and has the kernel call it.
func (s *sockets) attachGuard() (link.Link, error) {
	prog, m := s.progs[guardPin], s.maps[guardedMap]
	if prog == nil || m == nil {
		return nil, errNoLSM
	}
	if err := m.Put(uint32(0), uint32(0)); err != nil {
		return nil, err
	}
	l, err := link.AttachLSM(link.LSMOptions{Program: prog})
	if err != nil {
		return nil, err
	}
	var called uint32
	if err := errors.Join(spliceNothing(), m.Lookup(uint32(0), &called)); err != nil || called == 0 {
		l.Close()
		return nil, errors.Join(errNoLSM, err)
	}
	return l, nil
}

// spliceNothing calls splice(2) on a socket that has no data.
func spliceNothing() error {
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(sockets[0])
	defer unix.Close(sockets[1])
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return err
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	_, err = unix.Splice(sockets[0], nil, pipe[1], nil, 1, unix.SPLICE_F_NONBLOCK)
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	return err
}

// setGuard attaches the guard of a pinned chain, or detaches it if it is not wanted.
func (d *Dataplane) setGuard(s *sockets, dir string) error {
	if s.maps[guardedMap] == nil {
		return nil
	}
	pin := filepath.Join(dir, guardLinkPin)
	_, err := os.Stat(pin)
	attached := err == nil
	switch {
	case d.opts.NoGuard && attached:
		return s.detachGuard(pin)
	case d.opts.NoGuard || attached:
		return nil
	}
	l, err := s.attachGuard()
	if err != nil {
		slog.Info("splice(2) is not guarded: programs that may use it stay on TCP unless allowed", "reason", err)
		return nil
	}
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return fmt.Errorf("pin the guard: %w", err)
	}
	return nil
}

// detachGuard returns all connections to TCP first: their programs may rely on the guard.
func (s *sockets) detachGuard(pin string) error {
	err := s.maps[guardedMap].Put(uint32(0), uint32(0))
	if !s.isOff() { // else the module is leaving
		_, drainErr := s.drain()
		err = errors.Join(err, drainErr, s.setOff(false))
	}
	return errors.Join(err, os.Remove(pin))
}

// SetGuards attaches the guards of chains that an earlier agent has attached without, or the other way round.
func (d *Dataplane) SetGuards() error {
	chains, err := d.socketChains()
	errs := []error{err}
	for _, c := range chains {
		dir := d.layout.pinned(c)
		s, err := openSockets(dir)
		if err == nil {
			err = d.setGuard(s, dir)
			s.Close()
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Guard attaches the guard of the module until Close. It returns an error where the kernel does not call it.
func (l *LoadedSockets) Guard() error {
	one, err := l.sockets.attachGuard()
	if err == nil {
		l.links = append(l.links, one)
	}
	return err
}
