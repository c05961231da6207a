// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// events returns what kerb events prints as JSON.
func (n *node) events() (all []v1.Event) {
	n.T.Helper()
	for lines := json.NewDecoder(strings.NewReader(n.must("events", "-o", "json"))); lines.More(); {
		var e v1.Event
		if err := lines.Decode(&e); err != nil {
			n.T.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

// happened waits for an event, as "service/web Ready NotFound".
func (n *node) happened(want string) (found v1.Event) {
	n.T.Helper()
	n.Eventually(want, func() bool {
		for _, e := range n.events() {
			if found = e; fmt.Sprintf("%s/%s %s %s", strings.ToLower(e.Kind), e.Name, e.Type, e.Reason) == want {
				return true
			}
		}
		return false
	})
	return found
}

// What happens without a request, and what is refused, is found afterwards, also when the agent was restarted.
func TestEvents(t *testing.T) {
	n := newRunningNode(t)
	n.apply(counter(0))
	n.well("traffic")
	n.happened("agent/ Agent Started")
	started := n.happened("module/traffic ControlPlane Started")
	n.refused(n.tryApply(module("odd", "there-is-none", "*", nil)), 2, "there-is-none")
	n.refused(n.tryApply(module("odd", "there-is-none", "*", nil)), 2, "there-is-none")
	if e := n.happened("module/odd Change Refused"); e.Count != 2 || !strings.Contains(e.Message, "there-is-none") ||
		e.Time.Before(e.First) || e.Number <= started.Number {
		t.Errorf("a package that is not there, twice: %+v", e)
	}
	for _, pid := range n.children() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if e := n.happened("module/traffic ControlPlane Exited"); !strings.Contains(e.Message, "killed") {
		t.Errorf("a control plane that was killed: %+v", e)
	}
	n.Eventually("it is started again", func() bool {
		return n.happened("module/traffic ControlPlane Started").Count == 2
	})

	var other link.Link
	program := newForeign(t, ebpf.XDP, "other", 2).program // XDP_PASS
	if err := n.Lab.Node().Do(func() (err error) {
		other, err = link.AttachXDP(link.XDPOptions{Interface: n.web.OuterIndex(), Flags: link.XDPGenericMode,
			Program: program})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	onXDP := counter(0)
	onXDP.Metadata.Name, onXDP.Spec.Hook = "early", v1.HookXDP
	n.refused(n.tryApply(onXDP), 5, "xdp")
	n.happened("module/early Change Refused")
	n.happened("agent/ Change RolledBack")
	other.Close()

	if err := n.web.Remove(); err != nil {
		t.Fatal(err)
	}
	gone := n.happened("service/web Ready NotFound")
	n.wants("events", []string{"--of", "service/web"}, "service/web", "Ready NotFound")
	n.wants("events", []string{"--of", "agent", "--limit", "2"}, "agent", "Change RolledBack")
	n.refused(n.kerb("events", "--of", "nothing"), 2, "--of")
	n.Stop()
	n.start()
	if again := n.happened("service/web Ready NotFound"); !again.First.Equal(gone.First) {
		t.Errorf("after a restart: %+v, want %+v", again, gone)
	}
}
