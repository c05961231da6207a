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
	// Open opens a socket inside the service of an attachment, by which frames can be sent and nothing be received.
	// It keeps the namespace alive while it is open.
	Open(i sdk.Attachment) (*os.File, error)
	// Ended are those of the attachments, by ifindex, whose namespace lives on by such sockets only.
	Ended(list []sdk.Attachment) []uint32
}

// grantInject gives a control plane packet sockets, by which it sends frames as if services had sent them.
func grantInject(o *Options, _ string) any {
	return &injectGrant{from: o.Packets, failed: map[string]error{}}
}

// injectGrant has the packet sockets of a control plane. They are opened again for each run, and only the run has
// them: a socket keeps its service's namespace alive.
type injectGrant struct {
	from Packets
	of   *run
	sent map[uint32]sdk.Attachment // to the run, by ifindex

	mu     sync.Mutex
	failed map[string]error // by interface
}

func (g *injectGrant) prepare(p *Supervisor, r *run, attachments []sdk.Attachment) error {
	return g.update(p, r, attachments, false)
}

// maintain opens what could not be opened before, and closes the sockets that nothing else uses any more.
func (g *injectGrant) maintain(p *Supervisor, r *run, attachments []sdk.Attachment) {
	if err := g.update(p, r, attachments, true); err != nil {
		p.log.Warn("packet sockets are not up to date", "error", err)
	}
}

// update opens and closes the sockets of a run as its attachments require. With sweep it closes those whose
// namespaces nothing else keeps alive.
func (g *injectGrant) update(p *Supervisor, r *run, want []sdk.Attachment, sweep bool) error {
	if g.of != r {
		g.of, g.sent = r, map[uint32]sdk.Attachment{}
	}
	ended := map[uint32]bool{}
	if sweep {
		for _, ifindex := range g.from.Ended(slices.Collect(maps.Values(g.sent))) {
			ended[ifindex] = true
		}
	}
	now, next := byIndex(want), maps.Clone(g.sent)
	var closed []uint32
	for ifindex, was := range g.sent {
		if i, ok := now[ifindex]; !ok || ended[ifindex] || !sameInside(i, was) {
			closed = append(closed, ifindex)
			delete(next, ifindex)
		}
	}
	files := g.openNew(next, want, p.log)
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
	g.sent = next
	return nil
}

// openNew opens the missing sockets, and adds their attachments to there.
func (g *injectGrant) openNew(there map[uint32]sdk.Attachment, want []sdk.Attachment,
	log *slog.Logger) map[uint32]*os.File {
	files, failed := map[uint32]*os.File{}, map[string]error{}
	for _, i := range want {
		if _, ok := there[i.Ifindex]; ok || i.Service == "" {
			continue
		}
		f, err := g.from.Open(i)
		if err != nil {
			failed[i.Interface] = err
			continue
		}
		files[i.Ifindex], there[i.Ifindex] = f, i
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, err := range failed {
		if before := g.failed[name]; before == nil || before.Error() != err.Error() {
			log.Warn("cannot send in the name of a service", "interface", name, "error", err)
		}
	}
	g.failed = failed
	return files
}

// sameInside reports whether a socket that was opened for one is as good for the other.
func sameInside(a, b sdk.Attachment) bool {
	return a.Service == b.Service && a.Interface == b.Interface && a.MAC == b.MAC && slices.Equal(a.Addresses, b.Addresses)
}

func byIndex(list []sdk.Attachment) map[uint32]sdk.Attachment {
	out := make(map[uint32]sdk.Attachment, len(list))
	for _, i := range list {
		out[i.Ifindex] = i
	}
	return out
}

// condition names the interfaces for which the control plane cannot send.
func (g *injectGrant) condition() sdk.Condition {
	g.mu.Lock()
	defer g.mu.Unlock()
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(g.failed)) {
		lines = append(lines, fmt.Sprintf("%s: %v", name, g.failed[name]))
	}
	var err error
	if len(lines) > 0 {
		err = errors.New(strings.Join(lines, "; "))
	}
	return conditionOf("Inject", "Available", "PartiallyAvailable", err)
}
