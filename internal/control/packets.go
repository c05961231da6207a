// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/kerb-edge/kerb/sdk"
)

// Packets opens the sockets by which control planes send in the name of services.
type Packets interface {
	// Open opens a socket inside the service of an instance, by which frames can be sent and nothing be received. It keeps the
	// namespace alive while it is open.
	Open(i sdk.Instance) (*os.File, error)
	// Ended are those of the instances, by ifindex, whose namespace lives on by such sockets only.
	Ended(list []sdk.Instance) []uint32
}

// packets are the packet sockets of a control plane. They are opened for each run again, and only it has them: a socket
// keeps its service's namespace alive.
type packets struct {
	from Packets

	mu     sync.Mutex
	failed map[string]error // by interface
}

func newPackets(from Packets) *packets { return &packets{from: from, failed: map[string]error{}} }

// sendPackets brings a run's sockets up to date with the instances. One that cannot be had is tried again with the next
// health check; sweep closes those that nothing else uses any more.
func (p *Plane) sendPackets(r *run, t *told, want []sdk.Instance, sweep bool) error {
	if p.packets == nil {
		return nil
	}
	ended := map[uint32]bool{}
	if sweep {
		for _, ifindex := range p.packets.from.Ended(slices.Collect(maps.Values(t.packets))) {
			ended[ifindex] = true
		}
	}
	now, next := byIndex(want), maps.Clone(t.packets)
	var closed []uint32
	for ifindex, was := range t.packets {
		if i, ok := now[ifindex]; !ok || ended[ifindex] || !sameInside(i, was) {
			closed = append(closed, ifindex)
			delete(next, ifindex)
		}
	}
	files := p.packets.openNew(next, want, p.log)
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if len(files)+len(closed) == 0 {
		return nil
	}
	if err := r.sendPackets(files, closed); err != nil {
		return err
	}
	t.packets = next
	return nil
}

// openNew opens the sockets that are not there, and notes them.
func (p *packets) openNew(there map[uint32]sdk.Instance, want []sdk.Instance, log *slog.Logger) map[uint32]*os.File {
	files, failed := map[uint32]*os.File{}, map[string]error{}
	for _, i := range want {
		if _, ok := there[i.Ifindex]; ok || i.Service == "" {
			continue
		}
		f, err := p.from.Open(i)
		if err != nil {
			failed[i.Interface] = err
			continue
		}
		files[i.Ifindex], there[i.Ifindex] = f, i
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, err := range failed {
		if before := p.failed[name]; before == nil || before.Error() != err.Error() {
			log.Warn("cannot send in the name of a service", "interface", name, "error", err)
		}
	}
	p.failed = failed
	return files
}

// sameInside reports whether a socket that was opened for one is as good for the other.
func sameInside(a, b sdk.Instance) bool {
	return a.Service == b.Service && a.Interface == b.Interface && a.MAC == b.MAC && slices.Equal(a.Addresses, b.Addresses)
}

// InjectErr tells for which interfaces the control plane cannot send in the name of the service, nil if for none.
func (p *Plane) InjectErr() error {
	if p.packets == nil {
		return nil
	}
	p.packets.mu.Lock()
	defer p.packets.mu.Unlock()
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(p.packets.failed)) {
		lines = append(lines, fmt.Sprintf("%s: %v", name, p.packets.failed[name]))
	}
	if len(lines) == 0 {
		return nil
	}
	return errors.New(strings.Join(lines, "; "))
}
