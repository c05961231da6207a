// SPDX-License-Identifier: Apache-2.0

package node

import (
	"github.com/kerb-edge/kerb/integrations/kubernetes/events"
)

// component is the source of this program's Events. A policy in deploy/kubernetes permits no other one.
const component = "kerb-kube-node"

// Reasons of Events of pods.
const (
	notAdmitted  = "NotAdmitted"
	notProtected = "NotProtected"
)

// podEvents records what users of pods have to know: those of a namespace cannot read KerbNodes by default. Events of
// modules are kerb-kube-controller's: there is one for all nodes.
type podEvents struct {
	recorder *events.Recorder
	last     map[string]string // why pods are held that wait for more than a moment, by UID
	now      map[string]string // the same, of the round that runs
}

// held notes a pod that is not admitted. It is recorded once for each reason.
func (e *podEvents) held(p podService, pending bool) {
	if e == nil || !pending || !p.held.lasting || p.held == tooNew || p.unshown {
		return
	}
	text := p.held.Error()
	if e.now == nil {
		e.now = map[string]string{}
	}
	e.now[p.uid] = text
	if e.last[p.uid] != text {
		e.record(p, notAdmitted, "all packets of the pod are dropped: "+text)
	}
}

// admitted records that a pod is admitted without a module.
func (e *podEvents) admitted(p podService, missing error) {
	if e != nil && missing != nil && !p.unshown {
		e.record(p, notProtected, "the pod runs without a module whose failurePolicy is open: "+missing.Error())
	}
}

// end ends a round in which all services were seen.
func (e *podEvents) end() {
	if e != nil {
		e.last, e.now = e.now, nil
	}
}

func (e *podEvents) record(p podService, reason, message string) {
	e.recorder.Record(events.Event{Object: events.Object{APIVersion: "v1", Kind: "Pod", Namespace: p.namespace,
		Name: p.name, UID: p.uid}, Type: events.Warning, Reason: reason, Message: message})
}
