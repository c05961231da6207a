// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/internal/lab/kubefleet"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// goalBack is the longest time from the guard's decision to the previous version running again.
const goalBack = 5 * time.Second

// A version that passes the verifier and drops 1 of 100 packets is rolled back by the canary, which halts the rollout.
// While the API server is unreachable, the node rolls back, too, and the rollout halts afterwards.
func TestDrill(t *testing.T) {
	for name, away := range map[string]bool{"connected": false, "the API server is away": true} {
		t.Run(name, func(t *testing.T) { drill(t, away) })
	}
}

func drill(t *testing.T, away bool) {
	f := newFleet(t, "guard")
	const previous = "package: {name: firewall}, config: {defaultPolicy: {egress: allow}}"
	const selects = "attach: {pods: {podSelector: {matchLabels: {app: web}}}}"
	f.module(f.name, "{"+previous+", "+selects+"}")
	web := f.pod("web", map[string]string{"app": "web"})
	web.await(f.name)
	s, other := f.sink("sink"), &atomic.Bool{}
	web.sends(s, other, 50)
	f.module(f.name, "{package: {name: firewall}, config: {defaultPolicy: {egress: allow}, rules: "+
		"[{direction: egress, action: deny, protocol: udp, dstPort: 50}]}, "+selects+", rollout: {nodes: [n1], "+
		"soakSeconds: 600, maxDrops: 5, previous: {"+previous+"}}}")
	f.checks()
	f.Eventually("the canary runs the new version", func() bool { return strings.Contains(f.config(), "rules") })
	f.condition("False", "Canaries")
	if away {
		f.api.Hang()
	}
	other.Store(true)
	f.Eventually("the canary goes back", func() bool { return !strings.Contains(f.config(), "rules") })
	tripped := f.tripped()
	if away {
		f.api.Resume()
	}
	if text := f.condition("False", "NodesFailed"); !strings.Contains(text, "n1 RolledBack: the new version dropped") {
		t.Errorf("the condition says %s", text)
	}
	if p := f.get().Status.Rollout; p.Percent != 0 || p.Halted == nil || len(f.runs()) != 2 {
		t.Errorf("after the canary: %+v, and %v run the version", p, f.runs())
	}

	// The agent has changed the module three times: the first version, the new one, and the rollback, which ends the
	// drops.
	all := f.changesOf(f.name)
	if len(all) != 3 {
		t.Fatalf("changes of the module: %+v", all)
	}
	back := kubefleet.Done(all[2])
	t.Logf("the node was back %.3f s after its guard had tripped; goal %v", back.Sub(tripped).Seconds(), goalBack)
	if !tripped.After(all[1].Time) || !back.After(tripped) || back.Sub(tripped) > wait.Patience/2 {
		t.Errorf("new version at %v, guard at %v, previous version at %v", all[1].Time, tripped, back)
	}
	dropped, sent := f.dropped(), s.from(web)
	f.Eventually("the pod sends", func() bool { return s.from(web) > sent+500 })
	if now := f.dropped(); now != dropped {
		t.Errorf("the previous version drops: %d packets, before %d", now, dropped)
	}
}

// tripped returns when the guard of the node decided to roll back. It must have done so once.
func (f *fleet) tripped() time.Time {
	f.T.Helper()
	all, err := kubefleet.Tripped(f.log.Name())
	if err != nil || len(all) != 1 {
		f.T.Fatalf("the guard has tripped %d times (%v)", len(all), err)
	}
	return all[0]
}

// changesOf returns the agent's changes of a module, the first one first.
func (b *bed) changesOf(module string) []v1.ChangeRecord {
	b.T.Helper()
	all, err := kubefleet.Changes(b.Node.Node, module)
	if err != nil {
		b.T.Fatal(err)
	}
	return all
}

// dropped returns the drops of the module in its current chain.
func (f *fleet) dropped() (n uint64) {
	f.T.Helper()
	var m v1.Module
	f.Must(http.MethodGet, "/v1/modules/"+f.name, nil, &m)
	for _, c := range m.Status.Counts {
		for _, v := range c.Verdicts {
			if v.Verdict == "drop" {
				n += v.Packets
			}
		}
	}
	return n
}

// A version that the kernel of one node rejects is started on no node: the verifier rejects it in the check, and the
// canaries do not start it.
func TestRejectedByKernel(t *testing.T) {
	f := newFleet(t, "limit")
	d := newDepot(f.bed)
	good, bad := d.push("acme/limiter", "0.1.0", true), d.pushOf("../../../internal/dataplane/testdata/bad", "acme/bad",
		"0.2.0", true)
	f.module(f.name, "{"+ofImage(good)+"}")
	f.Eventually("the first version runs", func() bool { return f.packageOf(f.name) == good })
	f.module(f.name, fmt.Sprintf("{%s, rollout: {soakSeconds: 0, previous: {package: {image: %q}}}}", ofImage(bad), good))
	f.checks()
	if text := f.condition("False", api.CheckFailed); !strings.Contains(text, "1 of 9 nodes") ||
		!strings.Contains(text, "verifier refuses") {
		t.Errorf("the condition says %s", text)
	}
	if m := f.get(); m.Status.Rollout.Begun() || m.Status.Rollout.Halted == nil || m.Status.Desired != 0 {
		t.Errorf("the rollout has begun: %+v", m.Status)
	}
	if has := f.runs(); len(has) != 0 || len(f.changesOf(f.name)) != 1 || f.packageOf(f.name) != good {
		t.Errorf("nodes %v have begun, and the real one runs %s after %d changes", has, f.packageOf(f.name),
			len(f.changesOf(f.name)))
	}
}
