// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// What Modules of namespaces may take of the memory of this process, as weigh estimates it: those who write them do not
// administer nodes. Of Modules without room only the metadata is kept.
const (
	maxKept        = 2 * api.MaxModules // in a namespace; of later ones it is only known that there are some
	maxOfNamespace = 1 << 20            // bytes
	maxOfModules   = 16 << 20           // bytes, in all namespaces
	// Bytes of each namespace that are kept also where others have taken maxOfModules, until these take as much again.
	firstOfNamespace = maxOfNamespace / 16
)

// fits reports whether there is room for a Module of a weight, with what its namespace and all take.
func fits(weight, ofNamespace, total int) bool {
	ofNamespace, total = ofNamespace+weight, total+weight
	return ofNamespace <= maxOfNamespace &&
		(total <= maxOfModules || ofNamespace <= firstOfNamespace && total <= 2*maxOfModules)
}

// Estimates of memory in bytes.
const (
	weightOfModule = 512 // without its spec
	weightOfField  = 128 // of spec.config, besides its text
	weightOfText   = 8   // for each byte of the rest of the spec as JSON
)

// moduleRoom is what Modules of namespaces take of the memory. It is part of the state.
type moduleRoom struct {
	total int // bytes
	of    map[string]*namespaceRoom
}

// namespaceRoom is the memory that the Modules of one namespace take.
type namespaceRoom struct {
	bytes   int
	names   []string // on the node, at most maxKept: there are no earlier Modules
	more    bool     // there were later ones
	changed bool     // there may be fewer by now
}

func newModuleRoom() moduleRoom { return moduleRoom{of: map[string]*namespaceRoom{}} }

func (r *moduleRoom) namespace(name string) *namespaceRoom {
	if r.of[name] == nil {
		r.of[name] = &namespaceRoom{}
	}
	return r.of[name]
}

// weigh returns about how many bytes of memory a Module takes.
func weigh(m *api.Module) int {
	rest := m.Spec
	config, _ := json.Marshal(rest.Config) // decoded from JSON
	rest.Config = nil
	text, _ := json.Marshal(rest)
	return weightOfModule + len(config) + weightOfField*len(m.Spec.Config) + weightOfText*len(text)
}

// createdBefore orders the Modules of a namespace by age, so that a new one never displaces an older one.
func createdBefore(a, b api.ObjectMeta) int {
	return cmp.Or(strings.Compare(a.Created, b.Created), strings.Compare(a.Name, b.Name))
}

// keepModule stores a namespaced Module, or only its metadata if it exceeds the limits. It reports whether anything
// changed. The caller holds mu.
func (s *state) keepModule(m api.Module) bool {
	name := nodeName(m)
	before, known := s.modules[name]
	s.releaseModule(name)
	of := s.room.namespace(m.Metadata.Namespace)
	changed := false
	if len(of.names) == maxKept {
		changed, of.more = !of.more, true
		last := slices.MaxFunc(of.names, func(a, b string) int {
			return createdBefore(s.modules[a].Metadata, s.modules[b].Metadata)
		})
		if createdBefore(m.Metadata, s.modules[last].Metadata) > 0 {
			return changed
		}
		s.releaseModule(last)
		delete(s.images, last)
	}
	weight := weigh(&m)
	if m.Omitted == 0 && !fits(weight, of.bytes, s.room.total) {
		m.Omit(weight)
		weight = weigh(&m)
	}
	of.bytes, s.room.total, of.names = of.bytes+weight, s.room.total+weight, append(of.names, name)
	s.modules[name] = m
	return changed || !known || !reflect.DeepEqual(before, m)
}

// releaseModule removes a namespaced Module, and reports whether it was stored. The caller holds mu.
func (s *state) releaseModule(name string) bool {
	m, known := s.modules[name]
	if !known {
		return false
	}
	of, weight := s.room.of[m.Metadata.Namespace], weigh(&m)
	of.bytes, s.room.total = of.bytes-weight, s.room.total-weight
	of.names = slices.DeleteFunc(of.names, func(other string) bool { return other == name })
	if delete(s.modules, name); len(of.names) == 0 && !of.more {
		delete(s.room.of, m.Metadata.Namespace)
	}
	return true
}

// deleteModule removes a Module of a namespace that was deleted. It reports whether that has changed anything.
func (s *state) deleteModule(m api.Module) bool {
	of := s.room.of[m.Metadata.Namespace]
	if of != nil {
		of.changed = true
	}
	delete(s.images, nodeName(m))
	return s.releaseModule(nodeName(m))
}

// replaceModules stores the namespaced Modules that fit within the limits. more has the namespaces with further ones.
// The caller holds mu.
func (s *state) replaceModules(all []api.Module, more map[string]bool) {
	known := s.keptWeights()
	var stay, others []api.Module
	for _, m := range all {
		if m.Omitted == 0 && weigh(&m) <= known[m.Metadata.UID] {
			stay = append(stay, m)
		} else {
			others = append(others, m)
		}
	}
	maps.DeleteFunc(s.modules, func(_ string, m api.Module) bool {
		s.noteModulesChanged(m.Metadata.Namespace)
		return m.Metadata.Namespace != ""
	})
	s.room = newModuleRoom()
	for namespace := range more {
		s.room.namespace(namespace).more = true
	}
	for _, m := range slices.Concat(inTurn(stay), inTurn(others)) {
		s.setModule(*m)
	}
	for namespace := range more { // some were deleted while they were listed
		of := s.room.namespace(namespace)
		of.changed = len(of.names) < maxKept
	}
}

// keptWeights returns what each Module of a namespace takes whose spec is kept, by its UID. The caller holds mu.
func (s *state) keptWeights() map[string]int {
	out := map[string]int{}
	for _, m := range s.modules {
		if m.Metadata.Namespace != "" && m.Omitted == 0 {
			out[m.Metadata.UID] = weigh(&m)
		}
	}
	return out
}

// boundedList is for Handler.Share: Modules of a list are in memory together before any of them finds that there is no
// room. It keeps those that a namespace has had first, and notes in more which namespaces have others. A Module that
// was kept before and has not grown stays; others share the limits as Services do.
func (s *state) boundedList(more map[string]bool) func(*api.Module) (drop string) {
	type listed struct {
		api.ObjectMeta
		weight int
	}
	s.mu.Lock()
	known := s.keptWeights()
	s.mu.Unlock()
	clear(more)
	namespaces, bytes, total := map[string][]listed{}, map[string]int{}, 0
	return func(m *api.Module) (drop string) {
		namespace := m.Metadata.Namespace
		of := namespaces[namespace]
		remove := func(i int) {
			bytes[namespace], total = bytes[namespace]-of[i].weight, total-of[i].weight
			of = slices.Delete(of, i, i+1)
		}
		if i := slices.IndexFunc(of, func(l listed) bool { return l.UID == m.Metadata.UID }); i >= 0 {
			remove(i) // it has changed meanwhile
		}
		if len(of) == maxKept {
			more[namespace] = true
			last := slices.MaxFunc(of, func(a, b listed) int { return createdBefore(a.ObjectMeta, b.ObjectMeta) })
			if createdBefore(m.Metadata, last.ObjectMeta) > 0 {
				return m.Metadata.UID
			}
			drop = last.UID
			remove(slices.IndexFunc(of, func(l listed) bool { return l.UID == last.UID }))
		}
		is := listed{api.ObjectMeta{Name: m.Metadata.Name, UID: m.Metadata.UID, Created: m.Metadata.Created}, weigh(m)}
		if is.weight > known[m.Metadata.UID] && !fits(is.weight, bytes[namespace], total) {
			m.Omit(is.weight)
			is.weight = weigh(m)
		}
		namespaces[namespace] = append(of, is)
		bytes[namespace], total = bytes[namespace]+is.weight, total+is.weight
		return drop
	}
}

// modulesStarved reports whether there may be room now for Modules of namespaces that had to be left out. Nothing of
// them is kept: they have to be listed again. The caller holds no lock.
func (s *state) modulesStarved() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.room.of {
		if of.more && of.changed {
			return true
		}
		for _, name := range of.names {
			// The rest that a full list leaves is no reason: the next would, too.
			if n := s.modules[name].Omitted; n > 0 && fits(n, of.bytes, s.room.total+maxOfNamespace) {
				return true
			}
		}
	}
	return false
}

// followModules follows the Modules of namespaces, and lists them again when there is room for some that had none.
func followModules(ctx context.Context, c *watch.Client, s *state, log *slog.Logger) {
	for ctx.Err() == nil {
		during, stop := context.WithCancel(ctx)
		var running sync.WaitGroup
		running.Go(func() {
			watch.Follow(during, c, watch.Resource{Path: "/apis/" + api.Group + "/" + api.Version + "/" + api.Modules},
				watch.DefaultTimes, log, s.moduleHandler(ofModules))
		})
		for again := false; !again; again = again || ctx.Err() != nil {
			select {
			case <-ctx.Done():
			case <-time.After(relistEvery):
				again = s.modulesStarved()
			}
		}
		stop()
		running.Wait()
	}
}

// withMore returns the namespaces with Modules beyond those that are kept. The caller holds mu.
func (s *state) withMore() map[string]bool {
	out := map[string]bool{}
	for namespace, of := range s.room.of {
		if of.more {
			out[namespace] = true
		}
	}
	return out
}

// modulesKept returns a condition that lists the namespaces with Modules that exceed the limits, or nil.
func (s *state) modulesKept() *api.Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	var omitted, more []string
	for namespace, of := range s.room.of {
		if of.more {
			more = append(more, namespace)
		}
		for _, name := range of.names {
			if s.modules[name].Omitted > 0 {
				omitted = append(omitted, namespace+"/"+s.modules[name].Metadata.Name)
			}
		}
	}
	slices.Sort(omitted)
	slices.Sort(more)
	var all []string
	if len(more) > 0 {
		all = append(all, firstThree(plural(len(more), "namespace")+" with over "+plural(maxKept, "Module")+", of which the "+
			"first are read: new pods of these namespaces stay pending", more, ", "))
	}
	if len(omitted) > 0 {
		all = append(all, firstThree(plural(len(omitted), "Module")+" without room ("+roomOfModules+")", omitted, ", "))
	}
	if all == nil {
		return nil
	}
	return &api.Condition{Type: "ModulesKept", Status: "False", Reason: api.NoRoom,
		Message: truncate(strings.Join(all, "; ") + "; delete some: they are read again within " +
			fmt.Sprintf("%.0f minutes", relistEvery.Minutes()))}
}

var roomOfModules = fmt.Sprintf("%d MiB in a namespace, %d MiB in all, and then the first %d KiB of each namespace",
	maxOfNamespace>>20, maxOfModules>>20, firstOfNamespace>>10)
