// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// alias identifies the pod of a service.
type alias struct {
	uid    string
	mirror bool // found by the annotation of a mirror pod: the service's labels must name the same pod
}

// aliasEntry maps the digest of a service name to a pod.
type aliasEntry struct {
	service names.Digest
	pod     int32 // index in uids
	mirror  bool
}

// aliases map service names to pods. They are sorted by digest, with mirror pods after other pods. A sorted slice takes
// a quarter of the memory of a map with thousands of entries.
type aliases struct {
	uids []string
	all  []aliasEntry
}

// aliasesOf returns the pods by the two names that their services may have: with a runtime that passes kerb-cni no UID,
// the name has none. It computes two hashes for each pod, and is called when pods are created or deleted.
func aliasesOf(pods map[string]pod) *aliases {
	out := &aliases{make([]string, 0, len(pods)), make([]aliasEntry, 0, 2*len(pods))}
	for uid, p := range pods {
		i := int32(len(out.uids))
		out.uids = append(out.uids, uid)
		out.all = append(out.all, aliasEntry{names.Pod{Namespace: p.namespace, Name: p.name}.Digest(), i, false},
			aliasEntry{names.Pod{Namespace: p.namespace, Name: p.name, UID: uid}.Digest(), i, false})
		if p.static != "" {
			// The author of a pod can write the annotation: it must not transfer the labels of the pod to another one.
			out.all = append(out.all, aliasEntry{names.Pod{UID: p.static}.Digest(), i, true})
		}
	}
	slices.SortFunc(out.all, func(a, b aliasEntry) int {
		if c := bytes.Compare(a.service[:], b.service[:]); c != 0 || a.mirror == b.mirror {
			return c
		}
		if a.mirror {
			return 1
		}
		return -1
	})
	return out
}

// of returns the pod of a service.
func (a *aliases) of(service string) (alias, bool) {
	digest, ok := names.DigestOf(service)
	if !ok {
		return alias{}, false
	}
	i, known := slices.BinarySearchFunc(a.all, digest, func(n aliasEntry, d names.Digest) int {
		return bytes.Compare(n.service[:], d[:])
	})
	if !known {
		return alias{}, false
	}
	return alias{a.uids[a.all[i].pod], a.all[i].mirror}, true
}

// podServices finds the pods of services, for an agent whose modules are those of the given rules.
type podServices struct {
	state    *state
	rules    int
	aliases  *aliases           // immutable
	runtime  map[string]sandbox // reports of the container runtime, by service; the newest may have no service yet
	adoption *adoption
}

// podServices returns false if a rule that concerns all namespaces has changed since the given rules, which the agent
// has applied.
func (s *state) podServices(rules int) (podServices, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clusterRules > rules {
		return podServices{}, false
	}
	if s.aliases == nil {
		s.aliases = aliasesOf(s.pods)
	}
	return podServices{s, rules, s.aliases, maps.Clone(s.runtime.pods), s.adoption()}, true
}

// podService is the pod of a service.
type podService struct {
	pod
	alias
	pending bool // the service does not have the labels of the pod yet
	// unconfirmed: a module or namespace labels older than the pod may not have arrived yet.
	unconfirmed bool
	sandbox     string // the ID, if the container runtime has reported it
	runtimeOnly bool   // the API server has not delivered the pod yet
	held        *hold  // nil if the pod may be admitted
}

// of returns the pod of a service. If both the API server and the container runtime have reported the pod, the labels
// are those of the API server.
func (l podServices) of(service string, pending bool) (podService, bool) {
	a, known := l.aliases.of(service)
	b, reported := l.runtime[service]
	if !known && !reported {
		return podService{}, false
	}
	s := l.state
	s.mu.Lock()
	defer s.mu.Unlock()
	p, there := s.pods[a.uid]
	var of podService
	switch {
	case known && there:
		of = podService{pod: p, alias: a, sandbox: b.id}
		of.unconfirmed = !reported && p.version > s.confirmed[p.namespace] && !s.inSnapshot[a.uid]
	case reported:
		of = b.podService(service)
	default:
		return podService{}, false // deleted since
	}
	of.pending = pending
	of.held = s.holdOf(of, l.rules)
	return of, true
}

// ofRuntime returns the pod of a service as the container runtime has reported it, regardless of the API server's pod.
func (l podServices) ofRuntime(service string) (podService, bool) {
	b, reported := l.runtime[service]
	if !reported {
		return podService{}, false
	}
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	of := b.podService(service)
	of.held = l.state.holdOf(of, l.rules)
	return of, true
}

func (b sandbox) podService(service string) podService {
	return podService{pod: b.pod, alias: b.alias(service), sandbox: b.id, runtimeOnly: true}
}

// alias identifies a pod that the API server has not delivered yet.
func (b sandbox) alias(service string) alias { return alias{uid: cmp.Or(b.uid, service)} }

// holdOf returns why a pod is held, or nil. Before its namespace is known, it is unknown which modules select the pod.
// If only Modules of one namespace have changed, only new pods of that namespace are held: frequent changes in one
// namespace delay neither other pods nor label changes of running pods.
func (s *state) holdOf(p podService, rules int) *hold {
	switch _, known := s.namespaces[p.namespace]; {
	case p.tooMany:
		return manyLabels
	case !known:
		return noNamespace
	case p.pending && s.namespaceRules[p.namespace] > rules || s.clusterRules > rules:
		return modulesChanging
	case s.restored && s.synced != ofAll && (p.runtimeOnly || !s.inSnapshot[p.uid]):
		return notInSnapshot
	}
	return nil
}

// updateWaiting updates the times since which pods have been waiting for an admitted service.
func (l podServices) updateWaiting(await map[string]time.Time, admitted map[string]bool) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	unshown := map[string]bool{}
	for service, b := range l.runtime {
		if _, known := l.aliases.of(service); !known {
			unshown[b.alias(service).uid] = true
		}
	}
	maps.DeleteFunc(await, func(uid string, _ time.Time) bool {
		_, there := l.state.pods[uid]
		return admitted[uid] || !there && !unshown[uid]
	})
	wait := func(uid string) {
		if _, waits := await[uid]; !waits && !admitted[uid] {
			await[uid] = time.Now()
		}
	}
	for uid := range l.state.pods {
		wait(uid)
	}
	for uid := range unshown {
		wait(uid)
	}
}
