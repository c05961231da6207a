// SPDX-License-Identifier: Apache-2.0

// Package live has what runs of each module: the maps that packets meet, and the control plane that works on them.
package live

import (
	"log/slog"
	"maps"
	"slices"

	"github.com/kerb-edge/kerb/internal/control"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/sdk"
)

// Modules are those that run. They are not safe for concurrent use.
type Modules struct {
	log         *slog.Logger
	dp          *dataplane.Dataplane
	control     *control.Manager
	attachments func(module string) []sdk.Attachment // where one runs
	all         map[string]*module
}

// New returns no modules.
func New(log *slog.Logger, dp *dataplane.Dataplane, c *control.Manager) *Modules {
	none := func(string) []sdk.Attachment { return nil }
	return &Modules{log, dp, c, none, map[string]*module{}}
}

// module is a map set that sees packets.
type module struct {
	id     string
	values string // identity of the values that packets meet, empty without KERB_TUNABLES
	maps   sdk.Maps
	plane  *control.Supervisor  // nil if the package has none
	aging  *dataplane.IdleAging // nil unless the module takes idle sockets out of its map
}

func (l *module) close() {
	l.aging.Close()
	for _, m := range l.maps {
		m.Close()
	}
}

// Close closes the maps. Packets still meet them.
func (s *Modules) Close() {
	for _, l := range s.all {
		l.close()
	}
}

// Replace makes modules those that run. owners are the services of interfaces, attachments lists where a module runs.
func (s *Modules) Replace(modules map[string]*deploy.Module, owners map[int]string,
	attachments func(module string) []sdk.Attachment) {
	s.attachments = attachments
	for name, l := range s.all {
		if d := modules[name]; d == nil || d.Dataplane.ID != l.id || d.Control != l.plane ||
			!s.dp.Holds(name, l.id, l.maps) {
			l.close()
			delete(s.all, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		if err := s.activate(modules[name]); err != nil {
			s.log.Error("module cannot be followed", "module", name, "error", err)
		}
	}
	for name, l := range s.all {
		if err := dataplane.ForgetDrops(l.maps, func(ifindex int) bool { return owners[ifindex] != "" }); err != nil {
			s.log.Warn("cannot remove the drop counters of deleted services", "module", name, "error", err)
		}
	}
}

// activate opens the maps of a new map set, and notifies its control plane of where it runs.
func (s *Modules) activate(d *deploy.Module) error {
	if d.Filled != nil { // measurements read it
		d.Filled = nil
	}
	if d.Err != nil {
		return nil
	}
	name := d.Dataplane.Name
	l := s.all[name]
	isNew := l == nil || l.values != d.Dataplane.Values
	if l == nil {
		m, err := s.dp.Maps(name, d.Dataplane.ID)
		if err != nil {
			return err
		}
		l = &module{id: d.Dataplane.ID, maps: m, plane: d.Control}
		s.all[name] = l
	}
	l.values = d.Dataplane.Values
	s.ageIdle(d, l)
	if d.Control == nil {
		return nil
	}
	if !isNew {
		d.Control.SetAttachments(s.attachments(name))
		return nil
	}
	d.Control.Keep(func() {
		if err := s.control.CacheSettings(name, d.Identity(), d.Dataplane.Settings); err != nil {
			s.log.Warn("cannot store the compiled config; the agent will ask the control plane for it after a restart",
				"module", name, "error", err)
		}
	})
	return d.Start(l.maps, s.attachments(name))
}

// ageIdle takes idle sockets out of a module's map while it is attached.
func (s *Modules) ageIdle(d *deploy.Module, l *module) {
	if !d.Sockets || len(s.attachments(d.Dataplane.Name)) == 0 {
		l.aging.Close()
		l.aging = nil
		return
	}
	if l.aging != nil {
		return
	}
	gaveUp := func(err error) {
		s.log.Error("idle sockets are no longer aged out of the module's map", "module", d.Dataplane.Name, "error", err)
	}
	var err error
	if l.aging, err = s.dp.AgeIdle(d.SocketsChain(dataplane.Linker()), gaveUp); err != nil {
		gaveUp(err)
	}
}

// Maps returns the maps of a map set that sees packets, nil if there is none.
func (s *Modules) Maps(name string) sdk.Maps {
	l := s.all[name]
	if l == nil || !s.dp.Holds(name, l.id, l.maps) {
		return nil
	}
	return l.maps
}

// Open returns modules as the data plane takes them. Maps of map sets that run are used as they are.
func (s *Modules) Open(modules map[string]*deploy.Module) map[string]dataplane.Module {
	out := map[string]dataplane.Module{}
	for name, d := range modules {
		m := d.Dataplane
		if l := s.all[name]; l != nil && l.id == m.ID {
			m.Open = l.maps
		}
		out[name] = m
	}
	return out
}

// Plane returns the control plane of a module, nil if it has none, and whether the module runs.
func (s *Modules) Plane(name string) (plane *control.Supervisor, runs bool) {
	if l := s.all[name]; l != nil {
		return l.plane, true
	}
	return nil, false
}

// Planes returns all control planes by module.
func (s *Modules) Planes() map[string]*control.Supervisor {
	out := map[string]*control.Supervisor{}
	for name, l := range s.all {
		if l.plane != nil {
			out[name] = l.plane
		}
	}
	return out
}
