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
	pods     map[string]podHeld      // that are held for more than a moment, by UID
	later    map[string]events.Event // of pods without a module, for which the recorder had no room, by UID
	round    uint32
	seed     maphash.Seed
}

// podHeld identifies the Event recorded about a pod. It does not contain the message, which may be long: there may be
// thousands of pods.
type podHeld struct {
	message  uint64 // hash
	round    uint32 // in which it was held last
	accepted bool   // by the recorder
	runs     bool   // without modules
}

const maxLater = 256 // Events

func newPodEvents(r *events.Recorder) *podEvents {
	return &podEvents{recorder: r, pods: map[string]podHeld{}, later: map[string]events.Event{}, seed: maphash.MakeSeed()}
}

// begin starts a round, and discards the observations of a failed previous round.
func (e *podEvents) begin() {
	if e != nil {
		e.round++
	}
}

// held notes a pod that is not admitted. It is recorded once for each reason, as soon as the recorder has room.
func (e *podEvents) held(p podService, pending bool) {
	if e == nil || !pending || !p.held.lasting || p.held == tooNew || p.unshown {
		return
	}
	e.record(p, notAdmitted, allDropped)
}

// unadopted notes a pod that is no service, and runs without modules until it would not be held. It is recorded like
// held pods.
func (e *podEvents) unadopted(p podService) {
	if e == nil || !p.held.lasting || p.held == tooNew || p.unshown {
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
	is.message, is.round, is.runs = hash, e.round, reason == notProtected
	e.pods[p.uid] = is
}

// admitted records that a pod is admitted without a module.
func (e *podEvents) admitted(p podService, missing error) {
	if e == nil || missing == nil || p.unshown {
		return
	}
	of := podEvent(p, notProtected, withoutModule+missing.Error())
	if !e.recorder.Offer(of) && len(e.later) < maxLater {
		e.later[p.uid] = of
	}
}

// end ends a round in which all services were seen, and these pods admitted. Events that wait about others are dropped.
func (e *podEvents) end(admitted map[string]bool) {
	if e == nil {
		return
	}
	maps.DeleteFunc(e.pods, func(_ string, p podHeld) bool { return p.round != e.round })
	e.recorder.Keep(func(of events.Event) bool {
		is, held := e.pods[of.Object.UID]
		if of.Reason == notProtected {
			return admitted[of.Object.UID] || is.runs
		}
		return held && !is.runs
	})
	maps.DeleteFunc(e.later, func(uid string, of events.Event) bool { return !admitted[uid] || e.recorder.Offer(of) })
}

func podEvent(p podService, reason, message string) events.Event {
	return events.Event{Object: events.Object{APIVersion: "v1", Kind: "Pod", Namespace: p.namespace, Name: p.name,
		UID: p.uid}, Type: events.Warning, Reason: reason, Message: message}
}
