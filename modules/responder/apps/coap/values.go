// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// Placed is a listener with its place in the data plane.
type Placed struct {
	*Listener
	Name string
	Slot uint32
}

// Values are those of all listeners of a module. What is set while it runs outlives changes of its config.
type Values struct {
	mu    sync.Mutex
	set   map[place]*setting
	live  *generation // nil: packets meet none
	known bool        // what was set is in set; else, after a restart, only in the kernel
}

// place is a path of a listener.
type place struct{ listener, path string }

// setting is a value that was set at run time.
type setting struct {
	data    []byte
	expires time.Duration // since boot; 0: never
}

// generation is the resources of a config, numbered through, and their values in the kernel.
type generation struct {
	table     *table
	resources []numbered
	byPlace   map[place]int
}

type numbered struct {
	place
	*resource
}

func number(listeners []Placed) *generation {
	g := &generation{byPlace: map[place]int{}}
	for _, l := range listeners {
		for i := range l.resources {
			r := numbered{place{l.Name, string(l.resources[i].path)}, &l.resources[i]}
			g.byPlace[r.place] = len(g.resources)
			g.resources = append(g.resources, r)
		}
	}
	return g
}

// Settings are what the data plane needs for the listeners.
func Settings(listeners []Placed) sdk.Settings {
	names, resources, exchanges := 0, 0, 1
	for _, l := range listeners {
		resources += len(l.resources)
		names += len(l.resources) + len(l.hosts)
		if l.duplicates {
			exchanges = maxExchanges
		}
	}
	return sdk.Settings{
		Constants: map[string]any{"coap_duplicates": exchanges > 1},
		MaxEntries: map[string]uint32{mapNames: uint32(max(1, names)), mapVersions: uint32(max(1, resources)),
			mapValues: uint32(max(2, 2*resources)), mapExchanges: uint32(exchanges)},
	}
}

// Words are a listener's own words in the data plane (rsp_listener.config).
func (l *Listener) Words() []uint32 {
	if l.duplicates {
		return []uint32{1}
	}
	return nil
}

// Fill writes the maps of a new generation.
func (v *Values) Fill(maps sdk.Maps, listeners []Placed) error {
	if len(listeners) == 0 {
		return nil
	}
	g := number(listeners)
	if err := g.fillNames(maps, listeners); err != nil {
		return err
	}
	var err error
	if g.table, err = openTable(maps); err != nil {
		return err
	}
	defer g.table.close()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.known = true
	return v.write(g)
}

func (g *generation) fillNames(maps sdk.Maps, listeners []Placed) error {
	names, err := maps.Get(mapNames)
	if err != nil {
		return err
	}
	for _, l := range listeners {
		for i := range l.resources {
			path := l.resources[i].path
			n := uint32(g.byPlace[place{l.Name, string(path)}])
			err = errors.Join(err, names.Put(newName(l.Slot, 0, path), n))
		}
		for _, host := range l.hosts {
			err = errors.Join(err, names.Put(newName(l.Slot, 1, []byte(host)), uint32(0)))
		}
	}
	if err != nil {
		return fmt.Errorf("fill map %s: %w", mapNames, err)
	}
	return nil
}

// write gives all resources their values, if they have not got them already.
func (v *Values) write(g *generation) error {
	for i, r := range g.resources {
		is, err := g.table.get(i)
		if err != nil {
			return err
		}
		if want := r.value(v.set[r.place]); !want.equals(is) {
			if err := g.table.set(i, want); err != nil {
				return err
			}
		}
	}
	return nil
}

// value of a resource: what was set, or what its config says. nil: none.
func (r *resource) value(s *setting) *Value {
	if s != nil {
		return newValue(s.data, r.format, r.maxAge, s.expires)
	}
	if r.initial != nil {
		return newValue(r.initial, r.format, r.maxAge, 0)
	}
	return nil
}

func (v *Value) equals(o *Value) bool {
	return v == o || v != nil && o != nil && v.ETag == o.ETag && v.MaxAge == o.MaxAge && v.Expires == o.Expires
}

// Start makes a generation the one that values are set in, until Stop.
func (v *Values) Start(maps sdk.Maps, listeners []Placed) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	g := number(listeners)
	if len(listeners) > 0 {
		var err error
		if g.table, err = openTable(maps); err != nil {
			return err
		}
		if err := v.adopt(g); err != nil {
			g.table.close()
			return err
		}
	}
	v.stop()
	v.live = g
	return nil
}

// adopt brings set and the kernel together: after a restart the kernel knows better.
func (v *Values) adopt(g *generation) error {
	if v.known {
		return v.write(g)
	}
	v.set = map[place]*setting{}
	for i, r := range g.resources {
		is, err := g.table.get(i)
		if err != nil {
			return err
		}
		if is != nil && (is.Expires != 0 || r.initial == nil || !bytes.Equal(is.Data, r.initial)) {
			v.set[r.place] = &setting{is.Data, is.Expires}
		}
	}
	v.known = true
	return nil
}

// Stop ends what Start began.
func (v *Values) Stop() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stop()
}

func (v *Values) stop() {
	if v.live != nil && v.live.table != nil {
		v.live.table.close()
	}
	v.live = nil
}

// Errors of values that cannot be set.
var (
	ErrNoResource = errors.New("no such resource")
	ErrAmbiguous  = errors.New("there are several listeners; say which one")
	errNotRunning = errors.New("the module does not run yet")
)

// Set gives a resource a value. lease is how long it is fresh: requests after that go on to the server. 0: for ever, and
// Max-Age is what the config says.
func (v *Values) Set(listener, path string, data []byte, lease time.Duration) error {
	if len(data) > MaxValue {
		return errValueLength(len(data))
	}
	s := &setting{data: bytes.Clone(data)}
	if lease > 0 {
		s.expires = sinceBoot() + lease
	}
	return v.change(listener, path, s)
}

// Unset takes back what was set.
func (v *Values) Unset(listener, path string) error { return v.change(listener, path, nil) }

func (v *Values) change(listener, path string, s *setting) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	i, err := v.find(listener, path)
	if err != nil {
		return err
	}
	r := v.live.resources[i]
	if err := v.live.table.set(i, r.value(s)); err != nil {
		return err
	}
	if v.set == nil {
		v.set = map[place]*setting{}
	}
	if v.set[r.place] = s; s == nil {
		delete(v.set, r.place)
	}
	return nil
}

// find is the number of a resource; listener may be empty if only one has the path.
func (v *Values) find(listener, path string) (int, error) {
	if v.live == nil {
		return 0, errNotRunning
	}
	segments, err := ParsePath(path)
	if err != nil {
		return 0, err
	}
	encoded := string(encodePath(segments))
	if listener != "" {
		if i, ok := v.live.byPlace[place{listener, encoded}]; ok {
			return i, nil
		}
		return 0, fmt.Errorf("%s of listener %s: %w", path, listener, ErrNoResource)
	}
	var found []int
	for p, i := range v.live.byPlace {
		if p.path == encoded {
			found = append(found, i)
		}
	}
	switch len(found) {
	case 0:
		return 0, fmt.Errorf("%s: %w", path, ErrNoResource)
	case 1:
		return found[0], nil
	}
	return 0, fmt.Errorf("%s: %w", path, ErrAmbiguous)
}

// Report is a resource as it is now.
type Report struct {
	Listener string `json:"listener"`
	Path     string `json:"path"`
	Value    []byte `json:"-"`
	Text     string `json:"value"`
	Set      bool   `json:"set"` // false: requests go on to the server
	ETag     string `json:"etag,omitempty"`
	MaxAge   uint32 `json:"maxAge"`            // seconds, as a reply has it now
	Expires  bool   `json:"expires,omitempty"` // after maxAge requests go on to the server
}

// List tells all resources in the order of the config.
func (v *Values) List() []Report {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := []Report{}
	if v.live == nil {
		return out
	}
	now := sinceBoot()
	for _, r := range v.live.resources {
		out = append(out, r.report(r.value(v.set[r.place]), now))
	}
	return slices.Clip(out)
}

func (r numbered) report(v *Value, now time.Duration) Report {
	out := Report{Listener: r.listener, Path: r.name}
	if v == nil || v.Expires != 0 && v.Expires <= now {
		return out
	}
	out.Value, out.Text, out.Set, out.ETag, out.MaxAge = v.Data, string(v.Data), true, fmt.Sprintf("%x", v.ETag), v.MaxAge
	if v.Expires != 0 {
		out.MaxAge, out.Expires = uint32((v.Expires-now)/time.Second), true
	}
	return out
}
