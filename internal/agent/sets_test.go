// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/sdk"
)

func setOf(name, kind string, elements ...string) v1.Set {
	s := v1.Set{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindSet}, Metadata: v1.ObjectMeta{Name: name},
		Spec: v1.SetSpec{Type: kind}}
	s.Spec.Elements, _ = resource.NormalElements(kind, elements, "")
	return s
}

// blocking is a firewall that drops what services send to a set, or to services.
func blocking(dst map[string]any) v1.Module {
	return module("fw", "firewall", "*", map[string]any{"defaultPolicy": map[string]any{"ingress": "allow"},
		"rules": []any{map[string]any{"action": "deny", "direction": "egress", "dst": dst}}})
}

func (n *node) tryApply(all ...resource.Object) (v1.ApplyResult, error) {
	return n.Agent.Apply(context.Background(), resource.Request{Resources: all, By: resource.Writer{Owner: v1.OwnerUser}})
}

func (n *node) tryChangeSet(name string, change v1.SetChange) (v1.SetChanged, error) {
	return n.Agent.ChangeSet(context.Background(), resource.SetRequest{Name: name,
		By: resource.Writer{Owner: v1.OwnerUser}, SetChange: change})
}

func (n *node) changeSet(t *testing.T, name string, add, remove []string) v1.SetChanged {
	t.Helper()
	r, err := n.tryChangeSet(name, v1.SetChange{Add: add, Delete: remove})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// blocked expects that packets from web to db are dropped, or not. They are of one connection, each time the same.
// Other reasons do not count.
func (n *node) blocked(t *testing.T, want bool) {
	t.Helper()
	listen := func(h *netlab.Host) (c net.PacketConn) {
		t.Helper()
		err := h.Do(func() (err error) {
			c, err = net.ListenPacket("udp4", ":4001")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	from, at := listen(n.web), listen(n.db)
	defer func() { from.Close(); at.Close() }()
	was, to := n.policyDrops(t).Packets, net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.db.Addr4(), 4001))
	const sent = 5
	for range sent {
		if _, err := from.WriteTo([]byte("kerb"), to); err != nil {
			t.Fatal(err)
		}
	}
	var dropped, arrived uint64
	wait.Until(t, "each datagram was dropped or has arrived", func() bool { // on a busy machine, after a while
		_ = at.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if _, _, err := at.ReadFrom(make([]byte, 4)); err == nil {
			arrived++
		}
		dropped = n.policyDrops(t).Packets - was
		return dropped+arrived == sent
	}, func() any { return []uint64{dropped, arrived} }, func() any { return n.status(t, "fw").Drops })
	if dropped != sent && want || dropped != 0 && !want {
		t.Errorf("%d of %d datagrams dropped, want drops: %t; all: %+v", dropped, sent, want, n.status(t, "fw").Drops)
	}
}

// deleteElement deletes the address of db from a set in the kernel, and nowhere else.
func (n *node) deleteElement(set string) error {
	db := netip.PrefixFrom(n.db.Addr4(), 32)
	return n.Sets.Kernel.Change(sdk.SetReference{Set: set}.ID(), 99, nil, []netip.Prefix{db})
}

// A set is applied with the module that refers to it, changed by elements while the module's program stays, kept over a
// restart and a reboot, and cannot be deleted before the module has stopped to use it.
func TestSets(t *testing.T) {
	n := newNode(t)
	db := n.db.Addr4().String()
	if _, err := n.tryApply(resource.ObjectOf(blocking(map[string]any{"set": "bad"}))); err == nil ||
		!strings.Contains(err.Error(), "there is no set bad: create it with kerb set load bad FILE") {
		t.Errorf("without the set: %v", err)
	}
	if _, err := n.tryApply(resource.ObjectOf(blocking(map[string]any{"set": "bad"})),
		resource.ObjectOf(setOf("bad", "ports", "1"))); err == nil ||
		!strings.Contains(err.Error(), "must have addresses or prefixes") {
		t.Errorf("ports as addresses: %v", err)
	}
	n.apply(t, n.both())
	if _, err := n.tryApply(resource.ObjectOf(blocking(map[string]any{"set": "bad"})),
		resource.ObjectOf(setOf("bad", "addresses", db, "203.0.113.9"))); err != nil {
		t.Fatal(err)
	}
	chains := n.chainsOn(t, n.web)
	n.blocked(t, true)
	if r := n.changeSet(t, "bad", []string{"203.0.113.10"}, []string{db, "192.0.2.1"}); r.Added != 1 || r.Deleted != 1 ||
		r.Elements != 2 {
		t.Errorf("%+v", r)
	}
	n.blocked(t, false)
	n.changeSet(t, "bad", []string{db}, nil)
	n.blocked(t, true) // the connection was tracked
	got, err := get(context.Background(), n, resource.Set, "bad")
	if err != nil || got.Status.Elements != 3 || fmt.Sprint(got.Status.Modules) != "[fw]" ||
		got.Status.Conditions[0].Status != "True" || got.Metadata.Generation != 3 {
		t.Errorf("%+v %+v, %v", got, got.Status, err)
	}
	_, err = n.Agent.Apply(context.Background(), resource.Request{Remove: []resource.Ref{{Kind: v1.KindSet, Name: "bad"}},
		By: resource.Writer{Owner: v1.OwnerUser}})
	var conflict *apierrors.Conflict
	if !errors.As(err, &conflict) || !strings.Contains(err.Error(), "used by module fw (spec.config.rules[0].dst)") {
		t.Errorf("deleted while it is used: %v", err)
	}
	// as if the agent was killed after it had written the kernel and before it wrote the store
	n.Exclusive.Lock()
	err = n.deleteElement("bad")
	n.Exclusive.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	n.blocked(t, false)
	n.stop()
	n.start(t)
	n.reconcileNow(t)
	n.blocked(t, true)
	if !sameChains(chains, n.chainsOn(t, n.web)) {
		t.Error("another program")
	}
	if _, err := n.tryApply(resource.ObjectOf(setOf("bad", "prefixes", "203.0.113.0/24"))); err != nil {
		t.Fatal(err)
	}
	n.blocked(t, false)
	if _, err := n.tryApply(resource.ObjectOf(setOf("bad", "prefixes", db+"/32"))); err != nil {
		t.Fatal(err)
	}
	n.blocked(t, true)
	n.remove(t, resource.Ref{Kind: v1.KindModule, Name: "fw"}, resource.Ref{Kind: v1.KindSet, Name: "bad"})
	if _, err := n.Apply(t.Context(), resource.Request{DryRun: true, Verify: true, Resources: []resource.Object{
		resource.ObjectOf(blocking(map[string]any{"set": "bad"})),
		resource.ObjectOf(setOf("bad", "addresses", "203.0.113.9"))}}); err != nil {
		t.Errorf("a module with a set that is new, too, is not verified: %v", err)
	}
}

func sameChains(a, b map[string]string) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// The kernel gets the elements of the store when it has others of the same metadata.generation: a store was replaced by
// one of a backup.
func TestSetsOfOtherStore(t *testing.T) {
	n := newNode(t)
	db := n.db.Addr4().String()
	n.apply(t, n.both())
	if _, err := n.tryApply(resource.ObjectOf(blocking(map[string]any{"set": "bad"})),
		resource.ObjectOf(setOf("bad", "addresses", "203.0.113.9"))); err != nil {
		t.Fatal(err)
	}
	backup := func() []byte {
		data, err := os.ReadFile(n.cfg.Paths.Store())
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	restart := func(store []byte) {
		n.stop()
		if err := os.WriteFile(n.cfg.Paths.Store(), store, 0o600); err != nil {
			t.Fatal(err)
		}
		n.start(t)
		n.reconcileNow(t)
	}
	without := backup()
	n.changeSet(t, "bad", []string{db}, nil)
	n.blocked(t, true)
	n.stop() // until a second after the change it is in the journal only
	with := backup()
	n.start(t)
	restart(without)
	n.changeSet(t, "bad", []string{"203.0.113.10"}, nil)
	n.blocked(t, false)
	restart(with)
	n.blocked(t, true)
}

// A set that a module names cannot be deleted while the module cannot run. If it is missing all the same, the module
// does not run, and other changes are not refused for it.
func TestSetsOfModuleThatCannotRun(t *testing.T) {
	n := newNode(t)
	bad := resource.ObjectOf(setOf("bad", "addresses", n.db.Addr4().String()))
	n.apply(t, n.both())
	if _, err := n.tryApply(resource.ObjectOf(blocking(map[string]any{"set": "bad"})), bad); err != nil {
		t.Fatal(err)
	}
	setModule := func(d *deploy.Module) {
		n.Exclusive.Lock()
		defer n.Exclusive.Unlock()
		n.Lock.Lock()
		defer n.Lock.Unlock()
		n.Now.Modules["fw"] = d
	}
	failed := func() error {
		n.Exclusive.Lock()
		defer n.Exclusive.Unlock()
		return n.Now.Modules["fw"].Err
	}
	// as if the agent had started while the control plane did not
	n.Lock.Lock()
	runs := n.Now.Modules["fw"]
	n.Lock.Unlock()
	down := deploy.Unavailable(runs.Resource, errors.New("no control plane"), true, nil)
	down.Control = runs.Control
	setModule(down)
	_, err := n.Agent.Apply(context.Background(), resource.Request{Remove: []resource.Ref{resource.RefOf(bad)},
		By: resource.Writer{Owner: v1.OwnerUser}})
	if err == nil || !strings.Contains(err.Error(), "module fw, which cannot run now, names set bad") {
		t.Errorf("deleted under a module that cannot run: %v", err)
	}
	n.Exclusive.Lock()
	n.Lock.Lock()
	n.Now.Desired = n.Now.Desired.Clone()
	delete(n.Now.Desired[v1.KindSet], "bad")
	n.Lock.Unlock()
	n.Exclusive.Unlock()
	n.RetryFailed()
	if err := failed(); err == nil || !strings.Contains(err.Error(), "there is no set bad") {
		t.Errorf("without its set the module has %v", err)
	}
	setModule(runs)
	if _, err := n.tryApply(resource.ObjectOf(setOf("more", "ports", "1"))); err != nil {
		t.Errorf("another set is refused: %v", err)
	}
	n.apply(t, n.both())
	setModule(down)
	if _, err := n.tryApply(bad); err != nil {
		t.Fatal(err)
	}
	n.RetryFailed()
	if err := failed(); err != nil {
		t.Errorf("with its set the module has %v", err)
	}
	n.reconcileNow(t)
	n.blocked(t, true)
}

// Sets that cannot be written, nor restored, are a problem of the node until a reconciliation succeeds; others are not.
// Chains are attached meanwhile.
func TestSetsThatCannotBeWritten(t *testing.T) {
	n := newNode(t)
	services := n.both()
	n.apply(t, services[:1])
	db := n.db.Addr4().String()
	if _, err := n.tryApply(resource.ObjectOf(blocking(map[string]any{"set": "bad"})),
		resource.ObjectOf(setOf("bad", "addresses", db)), resource.ObjectOf(setOf("good", "ports", "1"))); err != nil {
		t.Fatal(err)
	}
	problemOf := func(set string) bool {
		st, err := n.Status(t.Context())
		return err == nil && slices.ContainsFunc(st.Problems, func(p v1.NodeProblem) bool {
			return p.Kind == v1.KindSet && p.Name == set && p.Reason == "SyncFailed"
		})
	}
	problem := func() bool { return problemOf("bad") }
	n.Exclusive.Lock()
	err := n.deleteElement("bad")
	n.Sets.Kernel.Close()
	n.Exclusive.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.tryChangeSet("bad", v1.SetChange{Add: []string{"203.0.113.9"}}); err == nil {
		t.Error("a change that does not reach the kernel is accepted")
	}
	if !problem() {
		t.Error("a set that cannot be written is no problem of the node")
	}
	if problemOf("good") {
		t.Error("a set that is in the kernel as it should be is a problem of the node")
	}
	n.Exclusive.Lock()
	n.Lock.Lock()
	n.Now.Desired = n.Now.Desired.Clone()
	n.Now.Desired.Put(resource.ObjectOf(services[1]))
	n.Lock.Unlock()
	err = n.Reconcile()
	n.Exclusive.Unlock()
	if err == nil || !strings.HasPrefix(n.chainsOn(t, n.db)["tc-egress"], "fw ") {
		t.Errorf("%v, chains %v", err, n.chainsOn(t, n.db))
	}
	n.Exclusive.Lock()
	n.Sets.Kernel = nil // opened again
	n.Exclusive.Unlock()
	wait.Until(t, "the set is written again", func() bool { return !problem() })
	n.blocked(t, true)
}

// Rules follow the services that a selector selects, as elements change.
func TestServicesAsSets(t *testing.T) {
	n := newNode(t)
	services := n.both()
	n.apply(t, services, blocking(map[string]any{"services": "role=db"}))
	n.blocked(t, false)
	chains := n.chainsOn(t, n.web)
	for _, role := range []string{"db", "cache", "db"} {
		services[1].Metadata.Labels = map[string]string{"role": role}
		n.apply(t, services[1:])
		n.blocked(t, role == "db")
	}
	if !sameChains(chains, n.chainsOn(t, n.web)) {
		t.Error("another program")
	}
}

// A change that refers to more sets and selectors of services than the kernel has room for is refused: its rules would
// match nothing.
func TestSelectorsThatDoNotFit(t *testing.T) {
	n := newNode(t)
	services := n.both()
	services[1].Metadata.Labels = map[string]string{"role": "db"}
	n.apply(t, services, blocking(map[string]any{"services": "role=db"}))
	<-n.Reconciled() // which would make maps of all those sets, each with a grace period
	n.Exclusive.Lock()
	n.Lock.Lock()
	n.Now.Desired = n.Now.Desired.Clone()
	for i := range dataplane.MaxSets - 1 {
		n.Now.Desired.Put(resource.ObjectOf(setOf(fmt.Sprint("s", i), "addresses")))
	}
	n.Lock.Unlock()
	n.Exclusive.Unlock()
	var full *apierrors.Conflict
	for _, change := range []resource.Object{resource.ObjectOf(blocking(map[string]any{"services": "role=cache"})),
		resource.ObjectOf(setOf("more", "addresses"))} {
		_, err := n.tryApply(change)
		if !errors.As(err, &full) ||
			!strings.Contains(err.Error(), "has room for 1023 sets and selectors of services, and has 1023: ") {
			t.Errorf("%s: %v", change.Meta().Name, err)
		}
	}
	n.blocked(t, true)
	unchanged := blocking(map[string]any{"services": "role=db"})
	unchanged.Metadata.Labels = map[string]string{"a": "b"}
	_, err := n.Agent.Apply(context.Background(), resource.Request{By: resource.Writer{Owner: v1.OwnerUser}, DryRun: true,
		Resources: []resource.Object{resource.ObjectOf(unchanged)}})
	if err != nil {
		t.Errorf("a change without another selector: %v", err)
	}
}

// 100,000 elements are accepted, and not one more; one of them changes in milliseconds.
func TestLargestSet(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both())
	elements := make([]string, v1.MaxSetElements)
	for i := range elements {
		elements[i] = fmt.Sprintf("198.%d.%d.%d", 18+i>>16, i>>8&255, i&255)
	}
	if _, err := n.tryApply(resource.ObjectOf(blocking(map[string]any{"set": "bad"})),
		resource.ObjectOf(setOf("bad", "addresses", elements...))); err != nil {
		t.Fatal(err)
	}
	db := n.db.Addr4().String()
	_, err := n.tryChangeSet("bad", v1.SetChange{Add: []string{db}})
	if err == nil || !strings.Contains(err.Error(), "a set can have 100000; summarize them as prefixes") {
		t.Errorf("one too many: %v", err)
	}
	n.blocked(t, false)
	n.changeSet(t, "bad", []string{db}, elements[:1])
	n.blocked(t, true)
	var took []time.Duration
	for i := range 20 {
		begin := time.Now()
		n.changeSet(t, "bad", elements[i:i+1], elements[i+1:i+2])
		took = append(took, time.Since(begin))
	}
	t.Log("changes of an element took ", took)
	more := resource.ObjectOf(setOf("more", "addresses", elements...))
	_, err = n.tryApply(more)
	if err == nil || !strings.Contains(err.Error(), "would have 200000 elements together, and can have 131072") {
		t.Errorf("of the same owner: %v", err)
	}
	for i, owner := range []string{"kubernetes", "oakestra"} {
		more.Meta().Name = owner
		_, err = n.Agent.Apply(context.Background(), resource.Request{Resources: []resource.Object{more},
			By: resource.Writer{Owner: owner}})
		if i == 0 && err != nil {
			t.Errorf("of another owner: %v", err)
		}
	}
	if err == nil || !strings.Contains(err.Error(), "all sets of the node would have 300000 elements together, and can "+
		"have 262144") {
		t.Errorf("all together: %v", err)
	}
}
