// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unique"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/integrations/kubernetes/watch"
)

// labels is an interned set of labels. Pods of one controller share it.
type labels struct{ handle unique.Handle[string] }

// labelsOf encodes a label set as text: keys and values, each followed by a zero byte, sorted by key.
func labelsOf(set map[string]string) labels {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(set)) {
		b.WriteString(key + "\x00" + set[key] + "\x00")
	}
	return labels{unique.Make(b.String())}
}

// set returns a copy.
func (l labels) set() map[string]string {
	out := map[string]string{}
	rest := l.handle.Value()
	for rest != "" {
		var key, value string
		key, rest, _ = strings.Cut(rest, "\x00")
		value, rest, _ = strings.Cut(rest, "\x00")
		out[key] = value
	}
	return out
}

// pod is the known state of a pod of this node.
type pod struct {
	namespace, name string
	labels          labels
	static          string // UID in the container runtime, if it is a static pod
	tooMany         bool   // labels exceed the limits, and are not stored
	version         uint64 // resourceVersion when it was first seen
}

// Limits of a pod's labels. They are in memory, in the agent and on disk, and Kubernetes does not limit their number.
const (
	maxLabels     = 64
	maxLabelBytes = 4096
)

// tooMany reports whether a pod's labels exceed the limits. The pod is not admitted: with only a part of its labels,
// modules that select it would not be attached.
func tooMany(set map[string]string) bool {
	bytes := 0
	for key, value := range set {
		bytes += len(key) + len(value)
	}
	return len(set) > maxLabels || bytes > maxLabelBytes
}

// Bits of the watched resources.
const (
	ofClusterModules = 1 << iota
	ofModules
	ofNamespaces
	ofPods
	ofAll = 1<<iota - 1
)

// state is the last known state of the API server, possibly restored from before this start. It is safe for concurrent
// use.
type state struct {
	node           string // name of the Node
	clock          clock
	mu             sync.Mutex
	modules        map[string]api.Module // by their names on the node
	moduleUsage    moduleUsage           // memory of namespaced Modules
	namespaces     map[string]labels
	pods           map[string]pod    // by UID
	aliases        *aliases          // pods by service names; nil: recompute
	trials         map[string]trial  // of new versions, by ClusterModules
	checks         map[string]check  // of new versions, by ClusterModules
	images         map[string]images // packages of modules, by their names on the node
	trust          trust             // which packages the cluster permits
	synced         int               // bits of resources with a complete list since this start
	restored       bool              // from a snapshot
	inSnapshot     map[string]bool   // UIDs of the pods of the snapshot
	confirmed      map[string]uint64 // by namespace: resourceVersion up to which pods miss no module
	version        int               // increases with each change of the fields above
	rules          int               // increases with each change of modules or namespaces: inputs of the agent's modules
	clusterRules   int               // value of rules after the last change that concerns all namespaces
	namespaceRules map[string]int    // by namespace: value of rules after the last change of one of its Modules
	runtime        containerRuntime
	changed        chan struct{} // has a value after a change
	urgent         chan struct{} // has a value after a report of the container runtime, which waits for the result
}

func newState(node string) *state {
	return &state{node: node, modules: map[string]api.Module{}, moduleUsage: newModuleUsage(),
		namespaces: map[string]labels{}, pods: map[string]pod{}, trials: map[string]trial{}, checks: map[string]check{},
		confirmed: map[string]uint64{}, namespaceRules: map[string]int{},
		images: map[string]images{}, runtime: containerRuntime{pods: map[string]sandbox{}},
		changed: make(chan struct{}, 1), urgent: make(chan struct{}, 1)}
}

// update calls f, and triggers a synchronisation if f reports a change. bits are the changed resources.
func (s *state) update(bits int, f func() bool) {
	s.mu.Lock()
	if !f() {
		s.mu.Unlock()
		return
	}
	s.version++
	if bits&(ofClusterModules|ofModules|ofNamespaces) != 0 {
		s.rules++
	}
	if bits&(ofClusterModules|ofNamespaces) != 0 {
		s.clusterRules = s.rules
	}
	s.mu.Unlock()
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// handler returns the handler of a watch of one resource. set and remove report whether they changed anything: most
// events are irrelevant, and after a change of rules all modules are applied again before pods are admitted.
func handler[T any](s *state, bit int, reset func(int), set, remove func(T) bool) watch.Handler[T] {
	return watch.Handler[T]{
		Replace: func(all []T) {
			s.update(bit, func() bool {
				reset(len(all))
				for _, o := range all {
					set(o)
				}
				s.synced |= bit
				return true
			})
		},
		Set:    func(o T) { s.update(bit, func() bool { return set(o) }) },
		Delete: func(o T) { s.update(bit, func() bool { return remove(o) }) },
	}
}

// noteModulesChanged records that this update changes modules of a namespace. A namespace that is not known has no pods
// that could be admitted.
func (s *state) noteModulesChanged(namespace string) {
	if _, known := s.namespaces[namespace]; known {
		s.namespaceRules[namespace] = s.rules + 1
	}
}

// moduleHandler returns the handler of the watch of ClusterModules or, with ofModules, of namespaced Modules.
func (s *state) moduleHandler(bit int) watch.Handler[api.Module] {
	if bit == ofModules {
		return s.tenantHandler()
	}
	reset := func(int) {
		maps.DeleteFunc(s.modules, func(_ string, m api.Module) bool { return m.Metadata.Namespace == "" })
	}
	return handler(s, bit, reset, s.setModule, func(m api.Module) bool {
		delete(s.modules, nodeName(m))
		delete(s.images, nodeName(m))
		return true
	})
}

// tenantHandler returns the handler of the watch of namespaced Modules, which are limited in number and size.
func (s *state) tenantHandler() watch.Handler[api.Module] {
	more := map[string]bool{}
	h := handler(s, ofModules, nil, s.setModule, func(m api.Module) bool {
		deleted := s.deleteModule(m)
		if deleted {
			s.noteModulesChanged(m.Metadata.Namespace)
		}
		return deleted
	})
	h.Share = func() func(*api.Module) string { return s.limitModuleList(more) }
	h.Replace = func(all []api.Module) {
		s.update(ofModules, func() bool {
			s.replaceModules(all, more)
			s.synced |= ofModules
			return true
		})
	}
	return h
}

// setModule stores a module, and reports whether that changed anything. The caller holds mu.
func (s *state) setModule(m api.Module) bool {
	m.Metadata = api.ObjectMeta{Name: m.Metadata.Name, Namespace: m.Metadata.Namespace, UID: m.Metadata.UID,
		Generation: m.Metadata.Generation, Created: m.Metadata.Created}
	m.Status = followed(m)
	name, changed := nodeName(m), false
	if m.Metadata.Namespace != "" {
		changed = s.keepModule(m)
	} else {
		before, known := s.modules[name]
		changed = !known || !reflect.DeepEqual(before, m)
		s.modules[name] = m
	}
	if !changed {
		return false
	}
	if kept, ok := s.modules[name]; ok {
		s.setImage(name, kept.Spec.Package.Image)
	}
	s.noteModulesChanged(m.Metadata.Namespace)
	return true
}

// followed returns the fields of a module's status that this node uses. Fields that change whenever nodes are counted
// are removed.
func followed(m api.Module) *api.ModuleStatus {
	p := m.Progress()
	if p == nil {
		return nil
	}
	out := &api.RolloutStatus{Version: p.Version, Percent: p.Percent, Canaries: p.Canaries}
	if p.Halted != nil {
		out.Halted = &api.Halt{Reason: p.Halted.Reason}
	}
	return &api.ModuleStatus{Rollout: out}
}

// nodeName returns the name of a module in the agent.
func nodeName(m api.Module) string {
	if m.Metadata.Namespace == "" {
		return m.Metadata.Name
	}
	return names.Module(m.Metadata.Namespace, m.Metadata.Name)
}

func (s *state) namespaceHandler() watch.Handler[api.Object] {
	reset := func(n int) {
		s.namespaces = make(map[string]labels, n)
		clear(s.namespaceRules) // the list changes all namespaces
		clear(s.confirmed)
	}
	return handler(s, ofNamespaces, reset,
		func(o api.Object) bool { return set(s.namespaces, o.Metadata.Name, labelsOf(o.Metadata.Labels)) },
		func(o api.Object) bool {
			delete(s.namespaces, o.Metadata.Name)
			delete(s.namespaceRules, o.Metadata.Name)
			delete(s.confirmed, o.Metadata.Name)
			return true
		})
}

// overLimit replaces label sets that are too large.
var overLimit = func() map[string]string {
	out := map[string]string{}
	for i := range maxLabels + 1 {
		out[strconv.Itoa(i)] = ""
	}
	return out
}()

// shareLabels makes objects with equal labels share a map, since a list of thousands of pods is in memory until it is
// complete. It also drops unused fields immediately.
func shareLabels() func(*api.Object) string {
	known := map[labels]map[string]string{}
	return func(o *api.Object) string {
		o.Metadata.Annotations = staticOnly(o.Metadata.Annotations)
		if tooMany(o.Metadata.Labels) {
			o.Metadata.Labels = overLimit
			return ""
		}
		of := labelsOf(o.Metadata.Labels)
		if same, ok := known[of]; ok {
			o.Metadata.Labels = same
		} else {
			known[of] = o.Metadata.Labels
		}
		return ""
	}
}

func (s *state) podHandler() watch.Handler[api.Object] {
	h := handler(s, ofPods, func(n int) { s.pods, s.aliases = make(map[string]pod, n), nil },
		func(o api.Object) bool {
			p := podOf(o.Metadata)
			before, ok := s.pods[o.Metadata.UID]
			if ok {
				p.version = before.version
			}
			if !ok || before.static != p.static {
				s.aliases = nil
			}
			return set(s.pods, o.Metadata.UID, p)
		},
		func(o api.Object) bool {
			delete(s.pods, o.Metadata.UID)
			s.aliases = nil
			return true
		})
	h.Share = shareLabels
	return h
}

func podOf(m api.ObjectMeta) pod {
	p := pod{namespace: m.Namespace, name: m.Name, tooMany: tooMany(m.Labels)}
	if p.tooMany {
		m.Labels = nil
	}
	p.labels = labelsOf(m.Labels)
	p.version, _ = strconv.ParseUint(m.ResourceVersion, 10, 64) // 0: resourceVersions of this server are not numbers
	if of := staticOnly(m.Annotations); of != nil {
		p.static = of.Static
	}
	return p
}

// maxUID is the maximum length of the UID of a static pod: authors of pods can write any text there.
const maxUID = 64

// staticOnly returns only the annotation of a static pod's mirror.
func staticOnly(of *api.Annotations) *api.Annotations {
	if of == nil || of.Static == "" || len(of.Static) > maxUID {
		return nil
	}
	return &api.Annotations{Static: of.Static}
}

// set stores a value, and reports whether it has changed.
func set[K, V comparable](in map[K]V, key K, value V) bool {
	before, known := in[key]
	in[key] = value
	return !known || before != value
}

// view is a snapshot of the state, which shares no mutable data with it.
type view struct {
	version        int
	rules          int
	clusterRules   int             // value of rules after the last change that concerns all namespaces
	known          bool            // there are complete lists or a snapshot to act on
	complete       bool            // all lists are complete since this start: absent objects were deleted
	modules        []api.Module    // in the version for this node
	truncated      map[string]bool // namespaces with more Modules than are kept
	updated        []api.Module    // ClusterModules whose rollout gives this node the new version, as in the API server
	namespaces     map[string]labels
	images         map[string]bool // packages of registries that the node needs
	previousImages map[string]bool // previous packages, which are not removed
	trust          trust
}

func (s *state) view() view {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := view{version: s.version, rules: s.rules, clusterRules: s.clusterRules, complete: s.synced == ofAll,
		namespaces: maps.Clone(s.namespaces), trust: s.trust}
	v.known = v.complete || s.restored
	v.truncated = s.truncatedNamespaces()
	// ClusterModules come first.
	v.modules = slices.SortedFunc(maps.Values(s.modules), func(a, b api.Module) int {
		return cmp.Or(strings.Compare(a.Metadata.Namespace, b.Metadata.Namespace), createdBefore(a.Metadata, b.Metadata))
	})
	if v.complete {
		maps.DeleteFunc(s.images, func(name string, _ images) bool { _, there := s.modules[name]; return !there })
	}
	v.images, v.previousImages = s.wantedImages(v.modules)
	for i, m := range v.modules {
		updated := s.updated(m)
		if updated {
			v.updated = append(v.updated, m)
		}
		v.modules[i] = m.Side(updated && !s.trials[m.Metadata.Name].failed(m))
	}
	return v
}

// withTooMany returns how many pods have labels beyond the limits, and the name of the first.
func (s *state) withTooMany() (n int, first string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		if !p.tooMany {
			continue
		}
		if name := p.namespace + "/" + p.name; n == 0 || name < first {
			first = name
		}
		n++
	}
	return n, first
}
