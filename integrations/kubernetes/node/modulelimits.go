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

// Limits of the memory that namespaced Modules take in this process, as estimated by estimateBytes: their authors do
// not administer nodes. Of Modules beyond the limits only the metadata is kept.
const (
	maxModulesKept    = 2 * api.MaxModules // in a namespace; of later ones only their existence is known
	maxNamespaceBytes = 1 << 20            // bytes
	maxModuleBytes    = 16 << 20           // bytes, in all namespaces
	// Guaranteed bytes of each namespace, even after others have used up maxModuleBytes, until these add up to as much
	// again.
	minNamespaceBytes = maxNamespaceBytes / 16
)

// fitsModule reports whether a Module of a size is within the limits, given the sizes of its namespace and of all. All
// sizes are in bytes.
func fitsModule(weight, ofNamespace, total int) bool {
	ofNamespace, total = ofNamespace+weight, total+weight
	return ofNamespace <= maxNamespaceBytes &&
		(total <= maxModuleBytes || ofNamespace <= minNamespaceBytes && total <= 2*maxModuleBytes)
}

// Estimates of memory in bytes.
const (
	moduleBytes = 512 // without its spec
	fieldBytes  = 128 // of spec.config, in addition to its text
	specFactor  = 8   // for each byte of the rest of the spec as JSON
)

// moduleUsage is the memory that namespaced Modules take. It is part of the state.
type moduleUsage struct {
	total      int // bytes
	namespaces map[string]*namespaceModules
}

// namespaceModules are the Modules of one namespace, and the memory that they take.
type namespaceModules struct {
	bytes     int
	names     []string // names on the node, at most maxModulesKept: the oldest of the namespace
	truncated bool     // the namespace had more than maxModulesKept
	changed   bool     // a Module was deleted since the last list, so that a further one may fit
}

func newModuleUsage() moduleUsage { return moduleUsage{namespaces: map[string]*namespaceModules{}} }

func (r *moduleUsage) namespace(name string) *namespaceModules {
	if r.namespaces[name] == nil {
		r.namespaces[name] = &namespaceModules{}
	}
	return r.namespaces[name]
}

// estimateBytes returns roughly how many bytes of memory a Module takes.
func estimateBytes(m *api.Module) int {
	rest := m.Spec
	config, _ := json.Marshal(rest.Config) // cannot fail: it was decoded from JSON
	rest.Config = nil
	text, _ := json.Marshal(rest)
	return moduleBytes + len(config) + fieldBytes*len(m.Spec.Config) + specFactor*len(text)
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
	of := s.moduleUsage.namespace(m.Metadata.Namespace)
	changed := false
	if len(of.names) == maxModulesKept {
		changed, of.truncated = !of.truncated, true
		last := slices.MaxFunc(of.names, func(a, b string) int {
			return createdBefore(s.modules[a].Metadata, s.modules[b].Metadata)
		})
		if createdBefore(m.Metadata, s.modules[last].Metadata) > 0 {
			return changed
		}
		s.releaseModule(last)
		delete(s.images, last)
	}
	weight := estimateBytes(&m)
	if m.Omitted == 0 && !fitsModule(weight, of.bytes, s.moduleUsage.total) {
		m.Omit(weight)
		weight = estimateBytes(&m)
	}
	of.bytes, s.moduleUsage.total, of.names = of.bytes+weight, s.moduleUsage.total+weight, append(of.names, name)
	s.modules[name] = m
	return changed || !known || !reflect.DeepEqual(before, m)
}

// releaseModule removes a namespaced Module, and reports whether it was stored. The caller holds mu.
func (s *state) releaseModule(name string) bool {
	m, known := s.modules[name]
	if !known {
		return false
	}
	of, weight := s.moduleUsage.namespaces[m.Metadata.Namespace], estimateBytes(&m)
	of.bytes, s.moduleUsage.total = of.bytes-weight, s.moduleUsage.total-weight
	of.names = slices.DeleteFunc(of.names, func(other string) bool { return other == name })
	if delete(s.modules, name); len(of.names) == 0 && !of.truncated {
		delete(s.moduleUsage.namespaces, m.Metadata.Namespace)
	}
	return true
}

// deleteModule handles the deletion of a namespaced Module. It reports whether it was stored. The caller holds mu.
func (s *state) deleteModule(m api.Module) bool {
	of := s.moduleUsage.namespaces[m.Metadata.Namespace]
	if of != nil {
		of.changed = true
	}
	delete(s.images, nodeName(m))
	return s.releaseModule(nodeName(m))
}

// replaceModules stores the namespaced Modules that fit within the limits. more has the namespaces with further ones.
// The caller holds mu.
func (s *state) replaceModules(all []api.Module, more map[string]bool) {
	known := s.keptBytes()
	var stay, others []api.Module
	for _, m := range all {
		if m.Omitted == 0 && estimateBytes(&m) <= known[m.Metadata.UID] {
			stay = append(stay, m)
		} else {
			others = append(others, m)
		}
	}
	maps.DeleteFunc(s.modules, func(_ string, m api.Module) bool {
		s.noteModulesChanged(m.Metadata.Namespace)
		return m.Metadata.Namespace != ""
	})
	s.moduleUsage = newModuleUsage()
	for namespace := range more {
		s.moduleUsage.namespace(namespace).truncated = true
	}
	for _, m := range slices.Concat(roundRobin(stay), roundRobin(others)) {
		s.setModule(*m)
	}
	for namespace := range more { // Modules that were deleted during the list may let others fit
		of := s.moduleUsage.namespace(namespace)
		of.changed = len(of.names) < maxModulesKept
	}
}

// keptBytes returns the size of each namespaced Module whose spec is kept, by UID. The caller holds mu.
func (s *state) keptBytes() map[string]int {
	out := map[string]int{}
	for _, m := range s.modules {
		if m.Metadata.Namespace != "" && m.Omitted == 0 {
			out[m.Metadata.UID] = estimateBytes(&m)
		}
	}
	return out
}

// limitModuleList returns a function for Handler.Share, which applies the limits while a list is read: without it, all
// Modules of the list would be in memory before any limit applies. It keeps the oldest Modules of each namespace, and
// adds namespaces with further ones to more. A Module that was kept before and has not grown stays. The others share
// the limits like Services.
func (s *state) limitModuleList(more map[string]bool) func(*api.Module) (drop string) {
	type listed struct {
		api.ObjectMeta
		weight int
	}
	s.mu.Lock()
	known := s.keptBytes()
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
			remove(i) // changed between two pages of the list
		}
		if len(of) == maxModulesKept {
			more[namespace] = true
			last := slices.MaxFunc(of, func(a, b listed) int { return createdBefore(a.ObjectMeta, b.ObjectMeta) })
			if createdBefore(m.Metadata, last.ObjectMeta) > 0 {
				return m.Metadata.UID
			}
			drop = last.UID
			remove(slices.IndexFunc(of, func(l listed) bool { return l.UID == last.UID }))
		}
		is := listed{api.ObjectMeta{Name: m.Metadata.Name, UID: m.Metadata.UID, Created: m.Metadata.Created},
			estimateBytes(m)}
		if is.weight > known[m.Metadata.UID] && !fitsModule(is.weight, bytes[namespace], total) {
			m.Omit(is.weight)
			is.weight = estimateBytes(m)
		}
		namespaces[namespace] = append(of, is)
		bytes[namespace], total = bytes[namespace]+is.weight, total+is.weight
		return drop
	}
}

// modulesNeedRelist reports whether omitted Modules may now be within the limits. Their specs are not in memory, so
// they have to be listed again. The caller holds no lock.
func (s *state) modulesNeedRelist() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.moduleUsage.namespaces {
		if of.truncated && of.changed {
			return true
		}
		for _, name := range of.names {
			// The slack that a full list leaves is no reason to relist: the next list would leave it, too.
			if n := s.modules[name].Omitted; n > 0 && fitsModule(n, of.bytes, s.moduleUsage.total+maxNamespaceBytes) {
				return true
			}
		}
	}
	return false
}

// followModules watches the namespaced Modules, and lists them again when omitted ones may be within the limits.
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
				again = s.modulesNeedRelist()
			}
		}
		stop()
		running.Wait()
	}
}

// truncatedNamespaces returns the namespaces with more than maxModulesKept Modules. The caller holds mu.
func (s *state) truncatedNamespaces() map[string]bool {
	out := map[string]bool{}
	for namespace, of := range s.moduleUsage.namespaces {
		if of.truncated {
			out[namespace] = true
		}
	}
	return out
}

// modulesKept returns a condition that lists the namespaces with Modules that exceed the limits, or nil if there are
// none.
func (s *state) modulesKept() *api.Condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	var omitted, more []string
	for namespace, of := range s.moduleUsage.namespaces {
		if of.truncated {
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
		all = append(all, joinThree(plural(len(more), "namespace")+" with over "+plural(maxModulesKept, "Module")+
			", of which the first are read: new pods of these namespaces stay pending", more, ", "))
	}
	if len(omitted) > 0 {
		all = append(all, joinThree(plural(len(omitted), "Module")+" without room ("+moduleLimitsText+")", omitted, ", "))
	}
	if all == nil {
		return nil
	}
	return &api.Condition{Type: "ModulesKept", Status: "False", Reason: api.NoRoom,
		Message: truncate(strings.Join(all, "; ") + "; delete some: they are read again within " +
			fmt.Sprintf("%.0f minutes", relistEvery.Minutes()))}
}

var moduleLimitsText = fmt.Sprintf("%d MiB in a namespace, %d MiB in all, and then the first %d KiB of each namespace",
	maxNamespaceBytes>>20, maxModuleBytes>>20, minNamespaceBytes>>10)
