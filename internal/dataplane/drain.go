// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
)

// Unread redirected bytes are lost when their socket leaves the SOCKHASH. So a module that is detached first stops
// redirecting (its map off), and then sockets are removed when they are found to hold no bytes. When off is set, a
// message may be between the program's verdict and the receiver's queue: it arrives within settleTime, a few
// microseconds unless its sender is descheduled.
const settleTime = 100 * time.Millisecond

// setOff makes the module's programs stop or resume redirecting.
func (s *sockets) setOff(off bool) error {
	m := s.maps[offMap]
	if m == nil {
		return nil
	}
	value := uint32(0)
	if off {
		value = 1
	}
	return m.Put(uint32(0), value)
}

// isOff reports whether off is set.
func (s *sockets) isOff() bool {
	value := uint32(0)
	m := s.maps[offMap]
	return m != nil && m.Lookup(uint32(0), &value) == nil && value != 0
}

// drain releases the sockets without redirected bytes, and returns how many are left. Sockets of a module without a
// program drain keep the kernel's part of the module until they are closed.
func (s *sockets) drain() (left int, err error) {
	prog, m := s.progs[drainPin], s.maps[socketsPin]
	if m == nil {
		return 0, nil
	}
	if prog == nil {
		return count(m), nil
	}
	if !s.isOff() {
		if err := s.setOff(true); err != nil {
			return 0, fmt.Errorf("stop redirection by the module: %w", err)
		}
		time.Sleep(settleTime)
	}
	for {
		if _, err := prog.Run(&ebpf.RunOptions{}); err != nil {
			return 0, fmt.Errorf("find sockets that can be released: %w", err)
		}
		gone, err := s.releaseFound()
		if err != nil {
			return 0, err
		}
		if left := count(m); left == 0 || gone == 0 {
			return left, nil
		}
	}
}

// releaseFound removes the sockets that the programs drain and age have found.
func (s *sockets) releaseFound() (gone int, err error) {
	var key []byte
	for s.maps[drainedMap].NextKey(nil, &key) == nil {
		for _, m := range []*ebpf.Map{s.maps[socketsPin], s.maps[drainedMap]} { // sockets in drained may be in both
			err := m.Delete(key)
			if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) { // closed meanwhile
				return gone, fmt.Errorf("release a socket: %w", err)
			}
		}
		gone++
		key = nil
	}
	return gone, nil
}

// drainTimeout is how long a detached module waits for its sockets. Those that still hold bytes then keep the kernel's
// part of the module until they are closed, and are plain TCP otherwise. Tests shorten it.
var drainTimeout = 10 * time.Second

// release releases a chain's sockets, unless another chain has the same ones. For up to drainTimeout it fails with a
// *chain.DrainingError.
func (d onSockets) release(c chain.Pinned) error {
	dir := d.layout.pinned(c)
	s, err := openSockets(dir)
	if err != nil {
		return fmt.Errorf("open programs: %w", err)
	}
	defer s.Close()
	shared, err := d.sharesSockets(c, s)
	if err != nil || shared {
		return err
	}
	left, err := s.drain()
	if err != nil {
		return err
	}
	since, known := d.draining[dir]
	if !known {
		since = time.Now()
		d.draining[dir] = since
	}
	if left > 0 && s.progs[drainPin] != nil && time.Since(since) < drainTimeout {
		return &chain.DrainingError{Modules: c.Spec.Members, Left: left}
	}
	delete(d.draining, dir)
	return nil
}

// sharesSockets reports whether another version of the module uses the same sockets.
func (d *Dataplane) sharesSockets(c chain.Pinned, s *sockets) (bool, error) {
	chains, err := d.socketChains()
	if err != nil || s.maps[socketsPin] == nil {
		return false, err
	}
	for _, other := range chains {
		if d.layout.pinned(other) == d.layout.pinned(c) {
			continue
		}
		m, err := pinnedMap(filepath.Join(d.layout.pinned(other), socketsPin))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return false, err
		}
		same := sameObject(m, s.maps[socketsPin])
		m.Close()
		if same {
			return true, nil
		}
	}
	return false, nil
}

// socketChains returns the pinned chains on sockets.
func (d *Dataplane) socketChains() ([]chain.Pinned, error) {
	chains, err := readChains(d.layout)
	return slices.DeleteFunc(chains, func(c chain.Pinned) bool { return c.Spec.Side != chain.OnSockets }), err
}

// drainAll releases all sockets, waiting at most drainTimeout.
func (d *Dataplane) drainAll() error {
	chains, err := d.socketChains()
	errs := []error{err}
	for _, c := range chains {
		var draining *chain.DrainingError
		err := d.RemoveChain(c)
		for errors.As(err, &draining) {
			time.Sleep(settleTime)
			err = d.RemoveChain(c)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// isDraining reports whether the maps of a map set belong to a module that is releasing its sockets.
func isDraining(maps map[string]*ebpf.Map) bool {
	return (&sockets{maps: maps}).isOff()
}

// count returns the number of sockets in a map, approximately while sockets are added and removed.
func count(m *ebpf.Map) int {
	key, next := []byte(nil), []byte(nil)
	for n := 0; ; n++ {
		var from any
		if n > 0 {
			from = key
		}
		if n > int(m.MaxEntries()) || m.NextKey(from, &next) != nil {
			return n
		}
		key, next = next, nil
	}
}
