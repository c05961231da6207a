// SPDX-License-Identifier: Apache-2.0

package node

import (
	"hash/maphash"
	"maps"

	"github.com/kerb-edge/kerb/integrations/kubernetes/events"
)

// component is the source of this program's Events. A policy in deploy/kubernetes permits no other one.
const component = "kerb-kube-node"

// Reasons of Events of pods, and the first words of their messages. The policy permits no other ones.
const (
	notAdmitted   = "NotAdmitted"
	allDropped    = "all packets of the pod are dropped: "
	notProtected  = "NotProtected"
	withoutModule = "the pod runs without a module whose failurePolicy is open: "
	withoutAny    = "the pod, which ran before Kerb, has no modules: "
)

// podEvents records Events about pods for their users, who cannot read KerbNodes by default. kerb-kube-controller
// writes Events about modules, one for all nodes.
type podEvents struct {
	recorder *events.Recorder
	pods     map[string]podRecord    // pods with a lasting hold, by UID
	deferred map[string]events.Event // about pods without a module that the recorder's queue had no space for, by UID
	round    uint32
	seed     maphash.Seed
}

// podRecord identifies the Event recorded about a pod. It does not contain the message, which may be long: there may be
// thousands of pods.
type podRecord struct {
	message     uint64 // hash of the message
	round       uint32 // last round in which the pod was held
	accepted    bool   // by the recorder
	unprotected bool   // the pod runs without modules
}

const maxDeferred = 256 // Events

func newPodEvents(r *events.Recorder) *podEvents {
	return &podEvents{recorder: r, pods: map[string]podRecord{}, deferred: map[string]events.Event{},
		seed: maphash.MakeSeed()}
}

// begin starts a round, and discards the observations of a failed previous round.
func (e *podEvents) begin() {
	if e != nil {
		e.round++
	}
}

// held records that a pod is not admitted: once for each reason, as soon as the recorder's queue has space.
func (e *podEvents) held(p podService, pending bool) {
	if e == nil || !pending || !p.held.lasting || p.held == notInSnapshot || p.runtimeOnly {
		return
	}
	e.record(p, notAdmitted, allDropped)
}

// unadopted records that a pod without a service runs without modules until its hold ends.
func (e *podEvents) unadopted(p podService) {
	if e == nil || !p.held.lasting || p.held == notInSnapshot || p.runtimeOnly {
		return
	}
	e.record(p, notProtected, withoutAny)
}

func (e *podEvents) record(p podService, reason, words string) {
	text := words + p.held.Error()
	is, hash := e.pods[p.uid], maphash.String(e.seed, text)
	if !is.accepted || is.message != hash {
		is.accepted = e.recorder.Offer(podEvent(p, reason, text))
	}
	is.message, is.round, is.unprotected = hash, e.round, reason == notProtected
	e.pods[p.uid] = is
}

// admitted records that a pod is admitted without a module that selects it.
func (e *podEvents) admitted(p podService, missing error) {
	if e == nil || missing == nil || p.runtimeOnly {
		return
	}
	of := podEvent(p, notProtected, withoutModule+missing.Error())
	if !e.recorder.Offer(of) && len(e.deferred) < maxDeferred {
		e.deferred[p.uid] = of
	}
}

// end ends a round that has processed all services. It drops queued Events about pods that are no longer held, or that
// are not in admitted.
func (e *podEvents) end(admitted map[string]bool) {
	if e == nil {
		return
	}
	maps.DeleteFunc(e.pods, func(_ string, p podRecord) bool { return p.round != e.round })
	e.recorder.Keep(func(of events.Event) bool {
		is, held := e.pods[of.Object.UID]
		if of.Reason == notProtected {
			return admitted[of.Object.UID] || is.unprotected
		}
		return held && !is.unprotected
	})
	maps.DeleteFunc(e.deferred, func(uid string, of events.Event) bool { return !admitted[uid] || e.recorder.Offer(of) })
}

func podEvent(p podService, reason, message string) events.Event {
	return events.Event{Object: events.Object{APIVersion: "v1", Kind: "Pod", Namespace: p.namespace, Name: p.name,
		UID: p.uid}, Type: events.Warning, Reason: reason, Message: message}
}
