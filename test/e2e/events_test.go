// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

// events returns the JSON output of kerb events.
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

// awaitEvent waits for an event, such as "service/web Ready NotFound".
func (n *node) awaitEvent(want string) (found v1.Event) {
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

// Events without a request, and rejected changes, are recorded, also when the agent was restarted.
func TestEvents(t *testing.T) {
	n := newRunningNode(t)
	n.apply(counter(0))
	n.awaitHealthy("traffic")
	n.awaitEvent("agent/ Agent Started")
	started := n.awaitEvent("module/traffic ControlPlane Started")
	n.refused(n.tryApply(module("odd", "there-is-none", "*", nil)), 2, "there-is-none")
	n.refused(n.tryApply(module("odd", "there-is-none", "*", nil)), 2, "there-is-none")
	if e := n.awaitEvent("module/odd Change Refused"); e.Count != 2 || !strings.Contains(e.Message, "there-is-none") ||
		e.Time.Before(e.First) || e.Number <= started.Number {
		t.Errorf("a missing package, twice: %+v", e)
	}
	for _, pid := range n.children() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	if e := n.awaitEvent("module/traffic ControlPlane Exited"); !strings.Contains(e.Message, "killed") {
		t.Errorf("a control plane that was killed: %+v", e)
	}
	n.Eventually("it is started again", func() bool {
		return n.awaitEvent("module/traffic ControlPlane Started").Count == 2
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
	n.awaitEvent("module/early Change Refused")
	n.awaitEvent("agent/ Change RolledBack")
	other.Close()

	if err := n.web.Remove(); err != nil {
		t.Fatal(err)
	}
	gone := n.awaitEvent("service/web Ready NotFound")
	n.expect("events", []string{"--of", "service/web"}, "service/web", "Ready NotFound")
	n.expect("events", []string{"--of", "agent", "--limit", "2"}, "agent", "Change RolledBack")
	n.refused(n.kerb("events", "--of", "nothing"), 2, "--of")
	n.Stop()
	n.start()
	if again := n.awaitEvent("service/web Ready NotFound"); !again.First.Equal(gone.First) {
		t.Errorf("after a restart: %+v, want %+v", again, gone)
	}
}

// followed are lines of events that a client reads as they arrive.
type followed struct {
	n    *node
	what string
	came chan v1.Event
	seen []v1.Event
}

// followEvents reads events until the test ends.
func (n *node) followEvents(what string, body io.Reader) *followed {
	f := &followed{n: n, what: what, came: make(chan v1.Event)}
	go func() {
		defer close(f.came)
		for lines := json.NewDecoder(body); ; {
			var e v1.Event
			if lines.Decode(&e) != nil {
				return
			}
			f.came <- e
		}
	}()
	return f
}

// awaitEvent waits for an event, such as "service/web Ready NotFound".
func (f *followed) awaitEvent(want string) (e v1.Event) {
	f.n.T.Helper()
	limit := time.After(nodetest.Patience)
	for {
		select {
		case got, open := <-f.came:
			if f.seen = append(f.seen, got); !open {
				f.n.T.Fatalf("%s has ended before %s: %+v", f.what, want, f.seen)
			}
			if fmt.Sprintf("%s/%s %s %s", strings.ToLower(got.Kind), got.Name, got.Type, got.Reason) == want {
				return got
			}
		case <-limit:
			f.n.T.Fatalf("%s: no %s, but %+v", f.what, want, f.seen)
		}
	}
}

// A following client gets events of services, control planes and rejected changes when they happen, of all or of one
// resource.
func TestEventsAreFollowed(t *testing.T) {
	n := newRunningNode(t)
	n.awaitEvent("agent/ Agent Started")
	cmd := n.Command(t.Context(), "events", "--follow", "-o", "json")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var notes strings.Builder
	cmd.Stderr = &notes
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	body, err := client.New(n.Socket()).Stream(t.Context(), "/v1/events?follow=true&kind=service&name=web")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	all, ofWeb := n.followEvents("kerb events --follow", out), n.followEvents("GET /v1/events", body)
	all.awaitEvent("agent/ Agent Started")

	n.apply(counter(0))
	all.awaitEvent("module/traffic ControlPlane Started")
	n.refused(n.tryApply(module("odd", "there-is-none", "*", nil)), 2, "there-is-none")
	refused := all.awaitEvent("module/odd Change Refused")
	n.refused(n.tryApply(module("odd", "there-is-none", "*", nil)), 2, "there-is-none")
	if again := all.awaitEvent("module/odd Change Refused"); again.Count != 2 || again.Number <= refused.Number ||
		!again.First.Equal(refused.First) || !strings.Contains(again.Message, "there-is-none") {
		t.Errorf("refused again: %+v, after %+v", again, refused)
	}
	for _, pid := range n.children() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	all.awaitEvent("module/traffic ControlPlane Exited")
	all.awaitEvent("module/traffic ControlPlane Started")
	if err := n.web.Remove(); err != nil {
		t.Fatal(err)
	}
	all.awaitEvent("service/web Ready NotFound")
	ofWeb.awaitEvent("service/web Ready NotFound")
	for _, e := range ofWeb.seen {
		if e.Kind != v1.KindService || e.Name != "web" {
			t.Errorf("of web: %+v", e)
		}
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	for range all.came { // to its end
	}
	if err := cmd.Wait(); err != nil || notes.Len() > 0 {
		t.Errorf("interrupted: %v, and said %q", err, notes.String())
	}
}

// A client that does not read while more events happen than the agent keeps gets the number of lost events when it
// reads.
func TestLostEventsAreReported(t *testing.T) {
	n := newRunningNode(t)
	body, err := client.New(n.Socket()).Stream(t.Context(), "/v1/events?follow=true&kind=Module")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	const many = 1500 // more than sockets and the agent keep; the agent keeps 100 of one resource
	for i := range many {
		odd := module("odd", fmt.Sprintf("%s-%d", strings.Repeat("none", 50), i), "*", nil)
		if err := n.Node.Node.Apply(odd); err == nil {
			t.Fatal("a missing package was found")
		}
	}
	f := n.followEvents("a slow client", body)
	lost, got := 0, 0
	for last := ""; !strings.Contains(last, fmt.Sprint("none-", many-1)); {
		select {
		case e, open := <-f.came:
			if !open {
				t.Fatalf("the stream has ended after %d events, with %d lost", got, lost)
			}
			last = e.Message
			if lost += e.Lost; e.Lost == 0 {
				got++
			}
		case <-time.After(nodetest.Patience):
			t.Fatalf("%d events arrived and %d are lost, of %d", got, lost, many)
		}
	}
	if lost == 0 || got+lost != many {
		t.Errorf("%d events arrived and %d are lost, of %d", got, lost, many)
	}
}
