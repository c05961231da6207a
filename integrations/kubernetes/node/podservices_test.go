// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/integrations/kubernetes/nri"
)

func uidOf(i int) string { return fmt.Sprintf("0000-%08d", i) }

func podObject(i int) api.Object {
	return api.Object{Metadata: api.ObjectMeta{Namespace: "default", Name: fmt.Sprint("pod-", i), UID: uidOf(i),
		Labels: map[string]string{"app": fmt.Sprint(i % 50)}, ResourceVersion: "7"}}
}

// crowded returns the state of a node with many pods.
func crowded(n int) *state {
	s := newState("n1")
	var all []api.Object
	for i := range n {
		all = append(all, podObject(i))
	}
	s.moduleHandler(ofClusterModules).Replace(nil)
	s.moduleHandler(ofModules).Replace(nil)
	s.namespaceHandler().Replace([]api.Object{{Metadata: api.ObjectMeta{Name: "default"}}})
	s.podHandler().Replace(all)
	return s
}

// A round allocates nothing for unchanged pods.
func TestManyPods(t *testing.T) {
	s := crowded(5000)
	rules := s.view().rules
	await := map[string]time.Time{}
	find := func(i int) bool {
		pods, ok := s.podServices(rules)
		p, known := pods.of(names.Pod{Namespace: "default", Name: fmt.Sprint("pod-", i), UID: uidOf(i)}.Service(), true)
		_, byName := pods.of(names.Pod{Namespace: "default", Name: fmt.Sprint("pod-", i)}.Service(), true)
		pods.updateWaiting(await, map[string]bool{uidOf(7): true})
		return ok && known && byName && p.uid == uidOf(i)
	}
	if !find(4000) || len(await) != 4999 {
		t.Fatalf("pods are not found, or %d wait", len(await))
	}
	if n := testing.AllocsPerRun(20, func() { find(4000) }); n > 100 {
		t.Errorf("%.0f allocations", n)
	}
	s.podHandler().Delete(api.Object{Metadata: api.ObjectMeta{UID: uidOf(4000)}})
	if find(4000) || len(await) != 4998 {
		t.Errorf("a deleted pod is found, or %d wait", len(await))
	}
	s.podHandler().Set(podObject(5000))
	if !find(5000) || !find(4999) {
		t.Error("a new pod is not found")
	}
}

// The annotation of a mirror pod makes it found by another UID, unless that is the UID of another pod.
func TestMirrors(t *testing.T) {
	s := crowded(3)
	rules := s.view().rules
	find := func(uid string) podService {
		pods, _ := s.podServices(rules)
		p, _ := pods.of(names.Pod{Namespace: "default", Name: "pod-1", UID: uid}.Service(), true)
		return p
	}
	if find("static").uid != "" {
		t.Error("a pod is found by a UID that none has")
	}
	mirror := podObject(1)
	mirror.Metadata.Annotations = &api.Annotations{Static: "static"}
	s.podHandler().Set(mirror)
	if p := find("static"); p.uid != uidOf(1) || !p.mirror {
		t.Errorf("the mirror is not found: %+v", p)
	}
	mirror.Metadata.Annotations.Static = uidOf(2)
	s.podHandler().Set(mirror)
	if p := find(uidOf(2)); p.uid != uidOf(2) || p.mirror || find("static").uid != "" {
		t.Errorf("a mirror replaces another pod: %+v", p)
	}
}

// Pods that only the container runtime has reported wait like others. A report during a pass over the agent's services
// belongs to the next pass, since its service may not exist yet.
func TestRuntimePodsWait(t *testing.T) {
	s := crowded(1)
	runtime := runtimePods{s, nil}
	p := nri.Pod{Namespace: "default", Name: "new", UID: "u1", ID: "c1"}
	begin(t, s, p)
	pods, _ := s.podServices(s.view().rules)
	again := p
	again.ID = "c2"
	begin(t, s, again)
	if of, ok := pods.of(serviceOf(p), true); !ok || of.sandbox != "c1" || !of.runtimeOnly || of.held != nil {
		t.Errorf("the runtime's pod is %+v", of)
	}
	await := map[string]time.Time{}
	if pods.updateWaiting(await, nil); await["u1"].IsZero() || len(await) != 2 {
		t.Errorf("these wait: %v", await)
	}
	since := await["u1"]
	if pods.updateWaiting(await, nil); await["u1"] != since {
		t.Error("a pod waits since the last comparison only")
	}
	s.namespaceHandler().Set(api.Object{Metadata: api.ObjectMeta{Name: "default", Labels: map[string]string{"a": "b"}}})
	if of, _ := pods.of(serviceOf(p), true); of.held != modulesChanging {
		t.Errorf("a pod is admitted to modules of older labels of its namespace: %+v", of)
	}
	if pods.updateWaiting(await, map[string]bool{"u1": true}); len(await) != 1 {
		t.Errorf("an admitted pod waits: %v", await)
	}
	runtime.Stop(again)
	pods, _ = s.podServices(s.view().rules)
	if _, ok := pods.of(serviceOf(p), true); ok {
		t.Error("a sandbox that has ended is found")
	}
}
