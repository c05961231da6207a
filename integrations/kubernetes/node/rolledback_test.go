// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
)

// sends makes a pod send until the test ends, and 1 of 100 packets to another port if other is set.
func (p *pod) sends(s *sink, other *atomic.Bool, port uint16) {
	p.bed.T.Helper()
	err := p.host.Do(func() error {
		c, err := net.ListenUDP("udp4", nil)
		if err != nil {
			return err
		}
		p.bed.T.Cleanup(func() { c.Close() })
		go func() {
			n := 0
			for range time.Tick(time.Millisecond) {
				at := s.at
				if n++; n%100 == 0 && other.Load() {
					at = netip.AddrPortFrom(at.Addr(), port)
				}
				if _, err := c.WriteToUDPAddrPort([]byte("x"), at); err != nil && p.bed.T.Context().Err() != nil {
					return
				}
			}
		}()
		return nil
	})
	if err != nil {
		p.bed.T.Fatal(err)
	}
}

// reportOf returns the node's report about a module.
func (b *bed) reportOf(name string) (out api.ModuleReport) {
	for _, r := range b.status().Status.Modules {
		if r.Name == name {
			out = r
		}
	}
	return out
}

// A new version that the agent rejects changes nothing. A version that passes the verifier and drops 1 of 100 packets
// is rolled back by the node, also while the API server is unreachable. The node does not retry it after a restart, and
// reports the reason. Another version is tried.
func TestRollback(t *testing.T) {
	b := newBed(t)
	const name, selects = "guard", "attach: {pods: {podSelector: {matchLabels: {app: web}}}}"
	const previous = "package: {name: firewall}, config: {defaultPolicy: {egress: allow}}"
	rollout := func(version string) {
		t.Helper()
		b.module(name, "{"+version+", "+selects+
			", rollout: {percent: 0, nodes: [n1], maxDrops: 5, previous: {"+previous+"}}}")
	}
	denies := func(port string) string {
		return "package: {name: firewall}, config: {defaultPolicy: {egress: allow}, rules: " +
			"[{direction: egress, action: deny, protocol: udp, dstPort: " + port + "}]}"
	}
	await := func(what, text string, want bool) {
		t.Helper()
		b.Eventually(what, func() bool {
			var m v1.Module
			if b.Get("/v1/modules/"+name, &m) != nil {
				return false
			}
			config, _ := json.Marshal(m.Spec.Config)
			return strings.Contains(string(config), text) == want
		})
	}
	b.module(name, "{"+previous+", "+selects+"}")
	web := b.pod("web", map[string]string{"app": "web"})
	web.await(name)
	s, other := b.sink("sink"), &atomic.Bool{}
	web.sends(s, other, 50)
	flows := func(what string) {
		t.Helper()
		before := s.from(web)
		b.Eventually(what, func() bool { return s.from(web) > before+100 })
	}
	flows("the pod sends")

	rollout("package: {name: nothing}")
	b.Eventually("the node reports that the agent refuses", func() bool { return b.reportOf(name).Reason == "Refused" })
	if got := web.modules(); got != name {
		t.Errorf("after a version that the agent refuses, the pod has modules %s", got)
	}
	flows("what ran before continues")

	rollout(denies("50"))
	await("the new version runs", "50", true)
	flows("the new version drops nothing of what is sent")
	b.api.Hang()
	other.Store(true)
	await("without the API server, the node goes back", "rules", false)
	b.stop(syscall.SIGKILL)
	other.Store(false) // from now on no drops would cause a rollback
	b.Must(http.MethodDelete, "/v1/modules/"+name+"?owner="+names.Owner, nil, nil)
	b.start()
	await("the previous version runs after a start", "egress", true)
	await("the previous version runs after a start", "rules", false)
	b.api.Resume()
	b.Eventually("the node says why", func() bool {
		r := b.reportOf(name)
		return r.Reason == api.RolledBack && strings.Contains(r.Message, "maxDrops allows 5 more")
	})
	flows("the previous version continues")

	rollout(denies("51"))
	await("another version is tried", "51", true)
	b.Eventually("the report has gone", func() bool { return b.status().Status.Conditions[0].Status == "True" })
}
