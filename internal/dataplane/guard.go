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

// A module on sockets may have a guard: a BPF program on an LSM hook that rejects system calls which its sockets cannot
// serve. Few kernels refuse to load it, but without bpf among the active LSMs they attach it and never call it.
const (
	guardPin     = "guard"     // the program
	guardLinkPin = "guardlink" // pinned next to it, so that it is removed with the chain
	guardedMap   = "guarded"
)

// Values of guarded. The program answers guardAsked with guardCalled, and changes nothing else: what is 0 stays so.
const (
	guardNone   = uint32(0)
	guardCalled = uint32(1) // the kernel calls a guard on these maps
	guardAsked  = uint32(2)
)

var (
	errNoLSM = errors.New("this kernel does not call BPF programs on LSM hooks (CONFIG_BPF_LSM, and bpf in lsm= of " +
		"its command line)")
	errNoGuard = errors.New("the kernel refused the guard when the module was loaded; the agent's log has the reason")
)

// loadGuard loads the guard if the kernel allows it. The module also runs without it.
func (s *sockets) loadGuard(g *mapSet, prog *ebpf.ProgramSpec) {
	loaded, err := loadOn(g, prog)
	if err != nil {
		slog.Info("the kernel refuses the guard of splice(2)", "module", g.Name, "error", err)
		s.guardErr = fmt.Errorf("load the guard: %w", err)
		return
	}
	s.progs[guardPin] = loaded
}

// attachGuard attaches the guard and triggers a call of it.
func (s *sockets) attachGuard() (link.Link, error) {
	prog := s.progs[guardPin]
	switch {
	case prog == nil && s.guardErr != nil:
		return nil, s.guardErr
	case prog == nil:
		return nil, errNoGuard
	}
	l, err := link.AttachLSM(link.LSMOptions{Program: prog})
	if err != nil {
		return nil, err
	}
	called, err := s.guardIsCalled()
	if err != nil || !called {
		l.Close()
		return nil, errors.Join(errNoLSM, err)
	}
	return l, nil
}

// guardIsCalled reports whether the kernel calls a guard on these maps, which may be that of another chain.
func (s *sockets) guardIsCalled() (bool, error) {
	m, is := s.maps[guardedMap], guardNone
	err := m.Put(uint32(0), guardAsked)
	if err == nil {
		err = errors.Join(spliceEmpty(), m.Lookup(uint32(0), &is))
	}
	if err != nil || is != guardCalled {
		return false, errors.Join(err, s.setGuarded(guardNone))
	}
	return true, nil
}

func (s *sockets) setGuarded(to uint32) error { return s.maps[guardedMap].Put(uint32(0), to) }

// spliceEmpty calls splice(2) on a socket that has no data.
func spliceEmpty() error {
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

// setGuard attaches the guard of a pinned chain, if it is wanted or the connections rely on it: another chain on the
// same maps may have one. An attached guard stays until its chain is removed: programs are enrolled, and may splice
// from their first call on, because it exists.
func (d *Dataplane) setGuard(s *sockets, dir string) error {
	if s.maps[guardedMap] == nil {
		return nil
	}
	pin := filepath.Join(dir, guardLinkPin)
	if _, err := os.Stat(pin); err == nil {
		if d.opts.NoGuard {
			slog.Info("splice(2) stays guarded until the module is detached", "pin", pin)
		}
		return nil
	}
	reliedOn, err := s.guardIsCalled()
	if err != nil {
		return fmt.Errorf("find a guard: %w", err)
	}
	if d.opts.NoGuard && !reliedOn {
		return nil
	}
	err = s.pinGuard(pin)
	switch {
	case err == nil:
		return nil
	case reliedOn: // on the other chain's guard, which must not be replaced by this one
		return errors.Join(fmt.Errorf("keep splice(2) guarded: %w", err), s.setGuarded(guardCalled))
	}
	slog.Info("splice(2) is not guarded: programs that may use it stay on TCP unless allowed", "reason", err)
	return s.setGuarded(guardNone)
}

// pinGuard attaches the guard and pins its link.
func (s *sockets) pinGuard(pin string) error {
	l, err := s.attachGuard()
	if err != nil {
		return err
	}
	defer l.Close()
	if err := l.Pin(pin); err != nil {
		return fmt.Errorf("pin the guard: %w", err)
	}
	return nil
}

// SetGuards attaches the guards of chains that an earlier agent attached without.
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

// Guard attaches the module's guard until Close. It returns an error if the kernel does not load or call it.
func (l *LoadedSockets) Guard() error {
	one, err := l.sockets.attachGuard()
	if err == nil {
		l.links = append(l.links, one)
	}
	return err
}
