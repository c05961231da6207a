// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"github.com/kerb-edge/kerb/sdk"
)

// memories are those of the modules of this package, by their names.
type memories struct {
	mu sync.Mutex
	of map[string]*memory
}

func (s *memories) get(module string) *memory {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[module] == nil {
		s.of[module] = newMemory(module)
	}
	return s.of[module]
}

// memory is what outlives a config, and by a file the control plane: the executables that the data plane has asked
// about, which for a program that listens it does once, when it begins to; and what services are called that
// connections were counted for.
type memory struct {
	module   string
	mu       sync.Mutex
	known    map[fileKey]*program
	services map[uint32]string // by number
	loaded   bool
	changed  bool // since it was saved
}

// program is one executable, or one process of it.
type program struct {
	File           fileKey
	Modified, Size uint64      // of the file, when the data plane asked
	Process        sdk.Process // by which it can be examined
	Comm           string
	Asked          time.Time
	Tries          int
	Facts          *sdk.Executable // nil: not known yet
	Problem        string          // why not
}

// byProcess reports whether each process of the file has a verdict of its own, and this is none of them.
func (p *program) byProcess() bool { return p.Facts.Configured && p.File.Device&ofProcess == 0 }

const (
	maxPrograms = 3072 // the data plane's table has room for 4096, some of which were not reported to us
	maxServices = 4096
	againAfter  = 10 * time.Second // an examination that brought nothing is tried again,
	maxTries    = 3                // so often
)

func newMemory(module string) *memory {
	return &memory{module: module, known: map[fileKey]*program{}, services: map[uint32]string{}}
}

func parseEvent(raw []byte) (e event, ok bool) {
	_, err := binary.Decode(raw, binary.NativeEndian, &e)
	return e, err == nil
}

// ask has the agent examine a program, unless it is known.
func (a *accelerator) ask(e *event) error {
	p, forgotten := a.memory.note(e)
	if forgotten != nil {
		if err := a.live.Maps.Delete(mapExecutables, *forgotten); err != nil {
			return err
		}
	}
	if p.Facts != nil {
		return a.tell(&p)
	}
	a.live.Examine(p.Process)
	return nil
}

// note returns a copy of what is known, and what had to be forgotten for it.
func (s *memory) note(e *event) (known program, forgotten *fileKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.known[e.File]
	if p == nil {
		if len(s.known) >= maxPrograms {
			forgotten = s.forgetOldest()
		}
		p = &program{File: e.File}
		s.known[e.File] = p
	}
	if p.Facts == nil {
		p.Modified, p.Size = e.Modified, e.Size
		p.Process, p.Comm = sdk.Process{PID: int(e.PID), Start: e.Start}, printable(e.Comm[:])
		p.Asked, p.Tries = time.Now(), 1
		s.changed = true
	}
	return *p, forgotten
}

func (s *memory) forgetOldest() *fileKey {
	var oldest *program
	for _, p := range s.known {
		if oldest == nil || p.Asked.Before(oldest.Asked) {
			oldest = p
		}
	}
	delete(s.known, oldest.File)
	return &oldest.File
}

// askAgain has the agent look again at those that it did not answer about.
func (a *accelerator) askAgain() {
	for _, p := range a.memory.overdue(time.Now()) {
		a.live.Examine(p)
	}
}

func (s *memory) overdue(now time.Time) (out []sdk.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.known {
		if p.Facts == nil && p.Tries < maxTries && now.Sub(p.Asked) > againAfter {
			p.Asked, p.Tries = now, p.Tries+1
			out = append(out, p.Process)
		}
	}
	return out
}

// Executables implements sdk.ExecutableUser.
func (a *accelerator) Executables(found []sdk.Executable) error {
	var errs []error
	for i := range found {
		for _, p := range a.memory.learn(&found[i]) {
			errs = append(errs, a.tell(&p))
		}
	}
	return errors.Join(errs...)
}

// learn returns the programs that are known now, and were not.
func (s *memory) learn(x *sdk.Executable) (out []program) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.known {
		if p.Process != x.Process || p.Facts != nil {
			continue
		}
		s.changed = true
		switch {
		case x.Problem != "":
			p.Problem = x.Problem
		// devices differ where a file system has several
		case x.Inode != p.File.Inode || x.Modified != p.Modified || x.Size != p.Size:
			p.Problem = "the process runs another program by now"
		default:
			p.Facts, p.Problem = x, ""
			out = append(out, *p)
		}
	}
	return out
}

// tell writes the verdict on a program.
func (a *accelerator) tell(p *program) error {
	verdict, _ := a.judge(a.live.Kernel, p)
	err := a.live.Maps.Put(mapExecutables, p.File, executableEntry{Verdict: verdict, Since: monotonic()})
	if err != nil {
		return fmt.Errorf("verdict on %s: %w", p.Facts.Path, err)
	}
	return nil
}

// judgeAll judges again, by another config or on another kernel. What the data plane has caught stays so, unless the
// config says otherwise. It asks again about programs of which nothing is known any more, as when an agent was killed
// before it wrote them down.
func (a *accelerator) judgeAll() error {
	told, err := told(a.live.Maps)
	if err != nil {
		return err
	}
	s := a.memory
	s.load(told)
	for file := range told {
		if s.knows(file) {
			continue
		}
		if err := a.live.Maps.Delete(mapExecutables, file); err != nil {
			return err
		}
	}
	for _, p := range s.all() {
		if p.Facts == nil || told[p.File].Verdict == caught && !a.allows(p.Facts.Path) {
			continue
		}
		if verdict, _ := a.judge(a.live.Kernel, &p); verdict == told[p.File].Verdict {
			continue
		}
		if err := a.tell(&p); err != nil {
			return err
		}
	}
	return nil
}

// hazards are what programs may use that redirected sockets do otherwise, by what internal/executable calls it, with
// the behaviours (of internal/sockprobe) that it needs.
var hazards = []struct {
	use, behaviours, says string
}{
	{"splice", "spliceRedirected", "splice(2), which does not see redirected data"},
	{"FIONREAD", "fionreadRedirected fionreadPassed", "ioctl(FIONREAD), which answers 0 while data waits"},
	{"MSG_WAITALL", "waitAll", "recv(MSG_WAITALL), which does not wait for all"},
	{"MSG_OOB", "urgent", "urgent data, which comes among the other"},
}

// judge says why a program may not take part.
func (a *accelerator) judge(k sdk.Kernel, p *program) (verdict uint32, why string) {
	switch {
	case a.denies(p.Facts.Path):
		return unsafe, "the config denies it"
	case a.allows(p.Facts.Path):
		return allowed, "the config allows it"
	case p.byProcess():
		return each, ""
	}
	var uses []string
	for _, h := range hazards {
		good := func(behaviour string) bool { return k.Sockets[behaviour] }
		needs := strings.Fields(h.behaviours)
		if slices.Contains(p.Facts.Uses, h.use) && slices.ContainsFunc(needs, func(b string) bool { return !good(b) }) {
			uses = append(uses, h.says)
		}
	}
	if len(uses) > 0 {
		return unsafe, "on this kernel: it may use " + strings.Join(uses, "; and ")
	}
	if k.Sockets["interrupted"] {
		return allowed, ""
	}
	return safe, ""
}

// serve notes what a service is called, and returns its number.
func (s *memory) serve(service string) uint32 {
	id := idOf(service)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.services[id] != service && len(s.services) < maxServices {
		s.services[id], s.changed = service, true
	}
	return id
}

// forget forgets the names of all services but some.
func (s *memory) forget(but map[uint32]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := len(s.services)
	maps.DeleteFunc(s.services, func(id uint32, _ string) bool { return !but[id] })
	s.changed = s.changed || len(s.services) < before
}

// name is what the service of a number is or was called.
func (s *memory) name(id uint32) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case id == theNode:
		return "(node)"
	case id == unknownService:
		return "(unknown)"
	}
	return cmp.Or(s.services[id], "(gone)")
}

func (s *memory) knows(file fileKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[file] != nil
}

// all are copies, in the order of their paths.
func (s *memory) all() (out []program) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.known {
		out = append(out, *p)
	}
	sort.Slice(out, func(i, j int) bool {
		a, b := &out[i], &out[j]
		return cmp.Or(cmp.Compare(a.path(), b.path()), bytes.Compare(a.File.bytes(), b.File.bytes())) < 0
	})
	return out
}

func (p *program) path() string {
	if p.Facts != nil {
		return p.Facts.Path
	}
	return ""
}

func (f fileKey) bytes() []byte {
	out, _ := binary.Append(nil, binary.BigEndian, f) // has a fixed size
	return out
}

// saved is the file of a module's memory.
type saved struct {
	Programs []program
	Services map[uint32]string
}

func (s *memory) file() string {
	return filepath.Join(os.Getenv("STATE_DIRECTORY"), "accelerator-"+s.module+".json")
}

// load reads it, once. Numbers of files and processes mean something until the node starts again: those programs are
// believed that the data plane, which starts again with it, has asked about.
func (s *memory) load(told map[fileKey]executableEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loaded || os.Getenv("STATE_DIRECTORY") == "" {
		return
	}
	s.loaded = true
	data, err := os.ReadFile(s.file())
	var was saved
	if err == nil {
		err = json.Unmarshal(data, &was)
	}
	if err != nil {
		return // they are asked about again
	}
	for i := range was.Programs {
		p := &was.Programs[i]
		if _, asked := told[p.File]; asked {
			p.Tries = 0
			s.known[p.File] = p
		}
	}
	maps.Copy(s.services, was.Services)
}

func (s *memory) save() {
	if os.Getenv("STATE_DIRECTORY") == "" {
		return
	}
	s.mu.Lock()
	changed, services := s.changed, maps.Clone(s.services)
	s.changed = false
	s.mu.Unlock()
	if !changed {
		return
	}
	data, err := json.Marshal(saved{s.all(), services})
	if err == nil {
		err = renameio.WriteFile(s.file(), data, 0o600, renameio.WithTempDir(os.Getenv("STATE_DIRECTORY")))
	}
	if err != nil {
		slog.Warn("accelerator: programs have to be examined again after a restart", "module", s.module, "error", err)
	}
}

// known verdicts are shown by these words.
var verdicts = map[uint32]string{asked: "unknown", safe: "safe", allowed: "safe", unsafe: "kept out",
	caught: "kept out"}

// told are the verdicts that the data plane goes by.
func told(m sdk.Maps) (map[fileKey]executableEntry, error) {
	return tableOf[fileKey, executableEntry](m, mapExecutables)
}
