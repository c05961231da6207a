// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// Names of a module's parts on sockets, in its object (except messages and sockets) and among the pins.
const (
	messagesPin = "messages" // the sk_msg program
	drainPin    = "drain"
	socketsPin  = "sockets" // the SOCKHASH
	offMap      = "off"
	drainedMap  = "drained"

	agePin = "age"
)

// SocketsPrefix begins the names of Kerb's programs on sockets.
const SocketsPrefix = "kerb_"

// sockets are the loaded programs of one module on sockets.
type sockets struct {
	progs map[string]*ebpf.Program // all, services, messages, drain, age, guard; those that the module has
	maps  map[string]*ebpf.Map     // sockets, off, drained, guarded; clones

	guardErr error // why the kernel has not loaded the guard
}

// Close frees what is neither pinned nor attached.
func (s *sockets) Close() {
	for _, p := range s.progs {
		p.Close()
	}
	closeAll(s.maps)
}

// loadSockets loads the programs on the maps of a map set.
func loadSockets(g *mapSet) (*sockets, error) {
	spec, err := g.Spec(chain.Sockets)
	if err != nil {
		return nil, fmt.Errorf("module %s: %w", g.Name, err)
	}
	s := &sockets{progs: map[string]*ebpf.Program{}, maps: map[string]*ebpf.Map{}}
	if err := s.load(g, spec); err != nil {
		s.Close()
		return nil, fmt.Errorf("module %s: %w", g.Name, err)
	}
	return s, nil
}

// load loads the programs of a module on sockets, and clones the maps that outlive a map set: sockets, and those for
// draining.
func (s *sockets) load(g *mapSet, spec *ebpf.CollectionSpec) error {
	for name, prog := range spec.Programs {
		if prog.Type == ebpf.SkMsg {
			name = messagesPin
		}
		prog.Name = SocketsPrefix + name
		if prog.Type == ebpf.LSM {
			s.loadGuard(g, prog)
			continue
		}
		loaded, err := loadOn(g, prog)
		if err != nil {
			return rejected(err, []string{g.Name})
		}
		s.progs[name] = loaded
	}
	for name, m := range spec.Maps {
		pin := name
		if m.Type == ebpf.SockHash {
			pin = socketsPin
		} else if name != offMap && name != drainedMap && name != guardedMap {
			continue
		}
		own, err := g.maps[mapPin(chain.Sockets, name)].Clone()
		if err != nil {
			return err
		}
		s.maps[pin] = own
	}
	return nil
}

// loadOn loads a program on the maps of a map set.
func loadOn(g *mapSet, prog *ebpf.ProgramSpec) (*ebpf.Program, error) {
	for i := range prog.Instructions {
		ins := &prog.Instructions[i]
		if !ins.IsLoadFromMap() || ins.Reference() == "" {
			continue
		}
		m := g.maps[mapPin(chain.Sockets, ins.Reference())]
		if m == nil {
			return nil, fmt.Errorf("map %s is missing", ins.Reference())
		}
		if err := ins.AssociateMap(m); err != nil {
			return nil, fmt.Errorf("map %s: %w", ins.Reference(), err)
		}
	}
	addLines(prog.Instructions)
	return ebpf.NewProgram(prog)
}

// attachMessages attaches the sk_msg program to the SOCKHASH and replaces the one there. Sockets that are in the map
// keep the program with which they were added. The program is removed together with the map.
func (s *sockets) attachMessages() error {
	prog, m := s.progs[messagesPin], s.maps[socketsPin]
	if prog == nil || m == nil {
		return nil
	}
	err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: m.FD(), Program: prog,
		Attach: ebpf.AttachSkMsgVerdict})
	if err != nil {
		return fmt.Errorf("put the sk_msg program on its map: %w", err)
	}
	return nil
}

// newLink attaches an entry for all sockets of a cgroup.
func (onSockets) newLink(p chain.Point, prog *ebpf.Program) (link.Link, error) {
	dir, err := dirOf(p)
	if err != nil {
		return nil, err
	}
	return attachCgroup(dir, prog)
}

func attachCgroup(dir string, prog *ebpf.Program) (link.Link, error) {
	l, err := link.AttachCgroup(link.CgroupOptions{Path: dir, Attach: ebpf.AttachCGroupSockOps, Program: prog})
	return l, cgroupError(dir, err)
}

// dirOf returns the directory of a point's cgroup.
func dirOf(p chain.Point) (string, error) {
	dir, err := cgroup.Dir(p.Cgroup)
	if errors.Is(err, cgroup.ErrGone) {
		return "", fmt.Errorf("cgroup %d: %w", p.Cgroup, chain.ErrGone)
	}
	return dir, err
}

// cgroupError explains kernel errors of an attachment: EPERM for a program in this cgroup or above that was attached
// without BPF_F_ALLOW_MULTI, and E2BIG for BPF_CGROUP_MAX_PROGS.
func cgroupError(dir string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENODEV):
		return fmt.Errorf("cgroup %s: %w", dir, chain.ErrGone)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("cgroup %s: %w: a program there or above allows no others (%w): bpftool cgroup tree", dir,
			chain.ErrBusy, err)
	case errors.Is(err, unix.E2BIG):
		return fmt.Errorf("cgroup %s: %w: 64 programs are there already, which is all that the kernel runs (%w)", dir,
			chain.ErrBusy, err)
	}
	return fmt.Errorf("cgroup %s: %w", dir, err)
}

// create loads and pins the programs of a module.
func (d onSockets) create(spec chain.Spec, members []*mapSet) error {
	s, err := loadSockets(members[0])
	if err != nil {
		return err
	}
	defer s.Close()
	return pinDir(d.layout.chain(spec), func(tmp string) error { return s.pin(tmp, spec.Members[0]) })
}

// pin pins everything that is needed for attaching and draining. One of the entries represents the whole, like prog0 in
// chains of packets, and the member.
func (s *sockets) pin(dir string, m chain.Member) error {
	pins := maps.Clone(s.progs)
	for _, e := range []chain.Entry{chain.All, chain.Services} {
		if p := s.progs[string(e)]; p != nil {
			pins[filepath.Base(entryPin(dir))], pins[memberPin(0, m)] = p, p
		}
	}
	for name, p := range pins {
		own, err := p.Clone() // the library stores one path for each handle
		if err != nil {
			return err
		}
		err = own.Pin(filepath.Join(dir, name))
		own.Close()
		if err != nil {
			return fmt.Errorf("pin program %s: %w", name, err)
		}
	}
	for name, m := range s.maps {
		if err := pinCopy(m, filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	return nil
}

// put attaches the sk_msg program of a pinned chain to its map, and the entry to the cgroup.
func (d onSockets) put(p chain.Point, dir string) error {
	s, err := openSockets(dir)
	if err != nil {
		return fmt.Errorf("open programs: %w", err)
	}
	defer s.Close()
	prog := s.progs[string(p.Entry)]
	if prog == nil {
		return fmt.Errorf("module %s: program %s: %w", p.Module, p.Entry, ErrNoProgram)
	}
	if _, err := dirOf(p); err != nil { // the kernel keeps a cgroup, and its link, while it has sockets
		return err
	}
	if err := s.attachMessages(); err != nil {
		return err
	}
	// first: programs that rely on the guard must not have spliced from an enrolled socket
	if err := d.setGuard(s, dir); err != nil {
		return err
	}
	delete(d.draining, dir) // it may have been draining
	if err := s.setOff(false); err != nil {
		return err
	}
	return d.attach(p, prog)
}

// LoadedSockets is a loaded module on sockets that is not pinned: for tests and checks of the kernel.
type LoadedSockets struct {
	Maps    sdk.Maps
	gen     *mapSet
	sockets *sockets
	links   []link.Link
}

// LoadSockets creates and fills the maps of a module, and loads its programs.
func LoadSockets(mod Module) (*LoadedSockets, error) {
	mod.Sockets = true
	g, err := newMapSet(mod, nil, nil)
	if err != nil {
		return nil, err
	}
	s, err := loadSockets(g)
	if err == nil {
		if err = s.attachMessages(); err != nil {
			s.Close()
		}
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	return &LoadedSockets{Maps: g.sdkMaps(), gen: g, sockets: s}, nil
}

// Attach runs an entry on the cgroup in a directory, until Close.
func (l *LoadedSockets) Attach(dir string, entry chain.Entry) error {
	prog := l.sockets.progs[string(entry)]
	if prog == nil {
		return fmt.Errorf("module %s: program %s: %w", l.gen.Name, entry, ErrNoProgram)
	}
	one, err := attachCgroup(dir, prog)
	if err == nil {
		l.links = append(l.links, one)
	}
	return err
}

// Trace has the module report messages to t.
func (l *LoadedSockets) Trace(t *Trace) error {
	spec := chain.Spec{Side: chain.OnSockets, Direction: chain.Both, Members: []chain.Member{{Name: l.gen.Name}}}
	m, err := t.messagesOf(l.gen.maps, spec)
	if err != nil || m == nil {
		return err
	}
	return t.reportMessages(m)
}

// Programs returns the programs of the module by name; the sk_msg program is called messages.
func (l *LoadedSockets) Programs() map[string]*ebpf.Program { return maps.Clone(l.sockets.progs) }

// Drain stops redirection, and removes sockets without redirected bytes from the map. It returns how many are left.
func (l *LoadedSockets) Drain() (left int, err error) { return l.sockets.drain() }

// AgeIdle periodically removes idle sockets until ctx ends.
func (l *LoadedSockets) AgeIdle(ctx context.Context, every time.Duration) error {
	return l.sockets.ageIdle(ctx, every)
}

// Close detaches and frees the module. Sockets that are still in the map keep it, and their redirected bytes.
func (l *LoadedSockets) Close() {
	for _, one := range l.links {
		one.Close()
	}
	l.sockets.Close()
	l.gen.Close()
}

// openSockets opens the parts of a pinned chain that are needed to attach and to drain it.
func openSockets(dir string) (*sockets, error) {
	s := &sockets{progs: map[string]*ebpf.Program{}, maps: map[string]*ebpf.Map{}}
	for _, name := range []string{string(chain.All), string(chain.Services), messagesPin, drainPin, agePin, guardPin} {
		p, err := ebpf.LoadPinnedProgram(filepath.Join(dir, name), nil)
		if err == nil {
			s.progs[name] = p
		} else if !errors.Is(err, os.ErrNotExist) {
			s.Close()
			return nil, fmt.Errorf("open program %s: %w", name, err)
		}
	}
	for _, name := range []string{socketsPin, offMap, drainedMap, guardedMap} {
		m, err := pinnedMap(filepath.Join(dir, name))
		if err == nil {
			s.maps[name] = m
		} else if !errors.Is(err, os.ErrNotExist) {
			s.Close()
			return nil, fmt.Errorf("open map %s: %w", name, err)
		}
	}
	return s, nil
}

// newSockets reports whether a map set has to start with empty maps: connections cannot move from one SOCKHASH to
// another, their state would be lost with them, and messages on sockets in a SOCKHASH are seen by the program, and its
// maps, with which they were added.
func (g *mapSet) newSockets(previous map[string]*ebpf.Map) (bool, error) {
	if !g.Sockets || previous == nil {
		return false, nil
	}
	spec, err := g.Spec(chain.Sockets)
	if err != nil {
		return false, err
	}
	if err := applySettings(spec, g.Module, map[string]bool{}); err != nil {
		return false, err
	}
	for name, m := range spec.Maps {
		old := previous[mapPin(chain.Sockets, name)]
		if old == nil && m.Type == ebpf.SockHash || old != nil && g.carried(name) && g.Migrate[name] == "" &&
			compareLayout(m, old) != sameLayout {
			return true, nil
		}
	}
	return isDraining(previous), nil
}
