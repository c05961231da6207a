// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sort"
	"sync"

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

// memory is what outlives a config, and by a file the control plane: the programs that the data plane has asked about,
// which for one that listens it does once, when it begins to; and what services are called that connections were
// counted for.
type memory struct {
	module   string
	mu       sync.Mutex
	known    map[fileKey]*program
	services map[uint32]string // by number
	loaded   bool
	changed  bool // since it was saved
}

const (
	maxPrograms = 3072 // the data plane's table has room for 4096, some of which were not reported to us
	maxServices = 4096
)

func newMemory(module string) *memory {
	return &memory{module: module, known: map[fileKey]*program{}, services: map[uint32]string{}}
}

func parseEvent(raw []byte) (e event, ok bool) {
	_, err := binary.Decode(raw, binary.NativeEndian, &e)
	return e, err == nil
}

// answer writes the verdict on a program that the data plane asks about.
func (a *accelerator) answer(e *event) error {
	p := e.program()
	if forgotten := a.memory.note(p); forgotten != nil {
		if err := a.live.Maps.Delete(mapExecutables, *forgotten); err != nil {
			return err
		}
	}
	return a.writeVerdict(&p)
}

// note remembers a program, and returns what had to be forgotten for it.
func (s *memory) note(p program) (forgotten *fileKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[p.File] == nil && len(s.known) >= maxPrograms {
		forgotten = s.forgetOldest()
	}
	s.known[p.File], s.changed = &p, true
	return forgotten
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

// writeVerdict writes the verdict on a program.
func (a *accelerator) writeVerdict(p *program) error {
	verdict, _ := a.judge(p)
	err := a.live.Maps.Put(mapExecutables, p.File, executableEntry{Verdict: verdict, Since: sdk.Monotonic()})
	if err != nil {
		return fmt.Errorf("verdict on %s: %w", p.Path, err)
	}
	return nil
}

// evaluateAll judges again, by another config or on another kernel. What the data plane has caught stays so, unless the
// config says otherwise. It asks again about programs of which nothing is known any more, as when an agent was killed
// before it wrote them down.
func (a *accelerator) evaluateAll() error {
	inMap, err := readVerdicts(a.live.Maps)
	if err != nil {
		return err
	}
	s := a.memory
	s.load(inMap)
	for file := range inMap {
		if s.knows(file) {
			continue
		}
		if err := a.live.Maps.Delete(mapExecutables, file); err != nil {
			return err
		}
	}
	for _, p := range s.all() {
		verdict, _ := a.judge(&p)
		if was := inMap[p.File].Verdict; verdict == was || was == caught && !a.allows(p.Path) {
			continue
		}
		if err := a.writeVerdict(&p); err != nil {
			return err
		}
	}
	return nil
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
		return cmp.Or(cmp.Compare(a.Path, b.Path), bytes.Compare(a.File.bytes(), b.File.bytes())) < 0
	})
	return out
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
func (s *memory) load(inMap map[fileKey]executableEntry) {
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
		return // the data plane asks about them again
	}
	for i := range was.Programs {
		p := &was.Programs[i]
		if _, asked := inMap[p.File]; asked && p.Path != "" { // 0.1.0 wrote others
			s.known[p.File] = p
		}
	}
	maps.Copy(s.services, was.Services)
}

// save writes programs and services to the state directory if they changed since the last call. The file is replaced
// atomically; a failure is only logged, because the memory merely saves work after a restart.
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
		slog.Warn("accelerator: programs must be checked again after a restart", "module", s.module, "error", err)
	}
}

// known verdicts are shown by these words.
var verdicts = map[uint32]string{safe: "safe", allowed: "safe", unsafe: "kept out", caught: "kept out"}

// readVerdicts returns the verdicts in the data plane's map.
func readVerdicts(m sdk.Maps) (map[fileKey]executableEntry, error) {
	return tableOf[fileKey, executableEntry](m, mapExecutables)
}
