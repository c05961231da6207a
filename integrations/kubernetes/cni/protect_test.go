// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// A second interface of a pod whose labels are known is protected only with the modules of the first: the agent may
// know it before it has attached the chains.
func TestSecondInterface(t *testing.T) {
	p := attachment{Attachment: names.Attachment{Network: "n", ContainerID: "c", Interface: "net1"},
		pod: names.Pod{Namespace: "shop", Name: "web", UID: "u"}, netns: "/run/netns/web"}
	first := names.Attachment{Network: "n", ContainerID: "c", Interface: "eth0"}
	hooks := func(modules ...string) (out []v1.HookState) {
		for _, hook := range []string{"tc-ingress", "tc-egress"} {
			out = append(out, v1.HookState{Hook: hook, Modules: modules})
		}
		return out
	}
	var service v1.Service
	service.Metadata = v1.ObjectMeta{Name: p.pod.Service(), Owner: names.OwnerPods,
		Labels: names.Admit(names.PodLabels(p.pod, first), map[string]string{"app": "web"})}
	for _, c := range []struct {
		what          string
		first, second []v1.HookState
		moved, ok     bool
	}{
		{what: "no module selects the pod", ok: true},
		{what: "both have the chains", first: hooks("fw", "count"), second: hooks("fw", "count"), ok: true},
		{what: "no chain yet", first: hooks("fw")},
		{what: "one direction", first: hooks("fw"), second: hooks("fw")[:1]},
		{what: "one module less", first: hooks("fw", "count"), second: hooks("fw")},
		{what: "the other is of an earlier sandbox", first: hooks("old"), moved: true, ok: true},
	} {
		service.Status = &v1.ServiceStatus{Links: []v1.ServiceLink{
			{Interface: "veth1", Peer: "eth0", Hooks: c.first, Moved: c.moved},
			{Interface: "veth2", Peer: "net1", Hooks: c.second}}}
		err := p.verify(t.Context(), service)
		if (err == nil) != c.ok || err != nil && (!isTemporary(err) || !strings.Contains(err.Error(), "veth2")) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
