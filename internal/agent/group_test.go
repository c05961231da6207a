// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
)

// groupHosts adds services in a lab of their own.
func groupHosts(t *testing.T, count int) []*netlab.Host {
	t.Helper()
	lab, err := netlab.New("kagg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	hosts, err := lab.Hosts(count, netlab.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return hosts
}

// changesMade is how many changes the agent has executed, each of which is a commit.
func changesMade(t *testing.T, n *node) int {
	t.Helper()
	samples := n.collect(t, "kerb_change_duration_seconds_count")
	if len(samples) != 1 {
		t.Fatal(samples)
	}
	return int(samples[0].Value)
}

type answer struct {
	result v1.ApplyResult
	err    error
}

// together has requests wait for a change, and returns their answers in order.
func (n *node) together(t *testing.T, requests []resource.Request) []answer {
	t.Helper()
	var calls []func() (v1.ApplyResult, error)
	for _, r := range requests {
		calls = append(calls, func() (v1.ApplyResult, error) { return n.Apply(t.Context(), r) })
	}
	return n.waiting(t, calls...)
}

func (n *node) waiting(t *testing.T, calls ...func() (v1.ApplyResult, error)) []answer {
	t.Helper()
	out := make([]answer, len(calls))
	var wg sync.WaitGroup
	n.Exclusive.Lock()
	for i, call := range calls {
		wg.Go(func() { out[i].result, out[i].err = call() })
		wait.Until(t, "the request waits", func() bool { return n.Waiting() == i+1 })
	}
	n.Exclusive.Unlock()
	wg.Wait()
	return out
}

// Services that are created while another change is executed become one change; one that is bad gets its own error, as
// does one that is another owner's.
func TestServicesShareOneChange(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("count", "counter", "*", nil))
	hosts := groupHosts(t, 6)
	var requests []resource.Request
	for i, h := range hosts {
		requests = append(requests, resource.Request{Resources: resource.Objects(serviceOf(fmt.Sprint("s", i), h))})
	}
	missing := serviceOf("missing", n.web)
	missing.Spec.Netns = "/run/netns/not-there"
	foreign := resource.Request{Resources: resource.Objects(serviceOf("web", n.web)), By: resource.Writer{Owner: "fleet"}}
	requests = append(requests, resource.Request{Resources: resource.Objects(missing)}, foreign)
	before := changesMade(t, n)
	answers := n.together(t, requests)
	for i, h := range hosts {
		a := answers[i]
		if a.err != nil || len(a.result.Changes) != 1 || a.result.Changes[0].Name != fmt.Sprint("s", i) {
			t.Errorf("service %d: %+v %v", i, a.result, a.err)
		}
		if len(a.result.Steps) != 2 { // egress and ingress of its own
			t.Errorf("service %d: steps %q", i, a.result.Steps)
		}
		if len(n.chainsOn(t, h)) != 2 {
			t.Errorf("service %d: chains %v", i, n.chainsOn(t, h))
		}
	}
	bad, other := answers[len(hosts)], answers[len(hosts)+1]
	if !strings.Contains(fmt.Sprint(bad.err), "not-there") {
		t.Errorf("a service that is not there: %v", bad.err)
	}
	var conflict *apierrors.Conflict
	if !errors.As(other.err, &conflict) {
		t.Errorf("a service of the user: %v", other.err)
	}
	if made := changesMade(t, n) - before; made != 1 {
		t.Errorf("%d changes, want 1", made)
	}
	stored, err := n.Store.Snapshot()
	if err != nil || stored.Len(resource.Service) != 2+len(hosts) {
		t.Errorf("%d services are stored, %v", stored.Len(resource.Service), err)
	}
}

// Services that are deleted while another change is executed become one change, together with those that are created;
// each answer has the steps of its own service. One that is not there gets its own error, and one that was just created
// is deleted, too.
func TestDeletionsShareOneChange(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("count", "counter", "*", nil))
	hosts := groupHosts(t, 4)
	var services []v1.Service
	for i, h := range hosts {
		services = append(services, serviceOf(fmt.Sprint("s", i), h))
	}
	n.apply(t, services[:3])
	remove := func(name string) func() (v1.ApplyResult, error) {
		return func() (v1.ApplyResult, error) {
			return n.Apply(t.Context(), resource.Request{Remove: []resource.Ref{{Kind: v1.KindService, Name: name}}})
		}
	}
	create := func() (v1.ApplyResult, error) {
		return n.Apply(t.Context(), resource.Request{Resources: resource.Objects(services[3])})
	}
	before := changesMade(t, n)
	answers := n.waiting(t, remove("s0"), remove("s1"), remove("s2"), create, remove("missing"), remove("s3"))
	for i, a := range answers {
		var missing *apierrors.NotFound
		if wrong := errors.As(a.err, &missing); wrong != (i == 4) || !wrong && (a.err != nil || len(a.result.Steps) != 2) {
			t.Errorf("request %d: %+v %v", i, a.result, a.err)
		}
	}
	if made := changesMade(t, n) - before; made != 2 { // s3 is created by the first, and deleted by the second
		t.Errorf("%d changes, want 2", made)
	}
	stored, err := n.Store.Snapshot()
	if err != nil || stored.Len(resource.Service) != 2 {
		t.Errorf("%d services are stored, %v", stored.Len(resource.Service), err)
	}
	for i, h := range hosts {
		if chains := n.chainsOn(t, h); len(chains) != 0 {
			t.Errorf("service %d: chains %v", i, chains)
		}
	}
}

// A group that cannot be executed is executed one by one; after a commit that fails each gets its error, and nothing
// stays attached.
func TestGroupFails(t *testing.T) {
	n := newNode(t)
	n.apply(t, nil, module("count", "counter", "*", nil))
	n.Exclusive.Lock()
	err := n.Store.Close()
	n.Exclusive.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	var requests []resource.Request
	for _, s := range n.both() {
		requests = append(requests, resource.Request{Resources: resource.Objects(s)})
	}
	for i, a := range n.together(t, requests) {
		if a.err == nil || len(a.result.Changes) != 1 {
			t.Errorf("request %d: %+v %v", i, a.result, a.err)
		}
	}
	if chains, err := n.Chains(t.Context()); err != nil || len(chains) != 0 {
		t.Errorf("chains %v, %v", chains, err)
	}
}
