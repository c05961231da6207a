// SPDX-License-Identifier: Apache-2.0

package resolve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/watch"
	"github.com/kerb-edge/kerb/sdk"
)

var quiet = slog.New(slog.DiscardHandler)

func virtual(name string, spec v1.VirtualServiceSpec) v1.VirtualService {
	return v1.VirtualService{Metadata: v1.ObjectMeta{Name: name}, Spec: spec}
}

// plain has one virtual address, and an instance for each of the addresses given.
func plain(address string, instances ...string) v1.VirtualServiceSpec {
	s := v1.VirtualServiceSpec{Addresses: []v1.VirtualAddress{{Address: address}}}
	for i, a := range instances {
		s.Instances = append(s.Instances, v1.VirtualInstance{Name: fmt.Sprint("i", i), Addresses: []string{a}})
	}
	return s
}

// plane is a control plane with its subscription.
type plane struct {
	*testing.T
	subscription *Subscription
	has          map[string]sdk.VirtualService
	fresh        map[string]bool // since reset
	unknown      []netip.Addr
	updates      int
}

func follow(t *testing.T, table *Table) *plane {
	return &plane{T: t, subscription: table.Subscribe("proxy"), has: map[string]sdk.VirtualService{}}
}

// sync takes all that there is to take.
func (p *plane) sync() *plane {
	p.Helper()
	for {
		u, more := p.subscription.Next()
		if !more {
			return p
		}
		p.take(u)
		p.subscription.Ack(u, nil)
	}
}

func (p *plane) take(u Update) {
	p.Helper()
	p.updates++
	data, err := json.Marshal(u)
	if err != nil {
		p.Fatal(err)
	}
	if len(data) > watch.MaxBytes || len(u.Put)+len(u.Remove) > watch.MaxResources {
		p.Errorf("an update of %d bytes, %d virtual services", len(data), len(u.Put)+len(u.Remove))
	}
	var got sdk.VirtualServiceUpdate
	if err := json.Unmarshal(data, &got); err != nil {
		p.Fatal(err)
	}
	if got.Reset {
		p.fresh = map[string]bool{}
	}
	for _, s := range got.Put {
		p.has[s.Name] = s
		p.fresh[s.Name] = true
	}
	for _, name := range got.Remove {
		delete(p.has, name)
	}
	if got.Complete {
		maps.DeleteFunc(p.has, func(name string, _ sdk.VirtualService) bool { return !p.fresh[name] })
	}
	p.unknown = append(p.unknown, got.Unknown...)
}

func (p *plane) names() string { return strings.Join(slices.Sorted(maps.Keys(p.has)), " ") }

// targets are the addresses of a virtual service's instances.
func (p *plane) targets(name string) string {
	var out []string
	for _, i := range p.has[name].Spec.Instances {
		out = append(out, i.Name+"="+strings.Join(i.Addresses, ",")+"@"+i.Service+i.Node)
	}
	return strings.Join(out, " ")
}

func (p *plane) expect(what, got, want string) {
	p.Helper()
	if got != want {
		p.Errorf("%s: %q, want %q", what, got, want)
	}
}

func condition(t *testing.T, table *Table, name, kind string) v1.Condition {
	t.Helper()
	s, ok := table.View(name)
	if !ok {
		t.Fatalf("no %s", name)
	}
	for _, c := range s.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	t.Fatalf("%s has no condition %s", name, kind)
	return v1.Condition{}
}

func TestSubscriptionSendsAllThenDifferences(t *testing.T) {
	table := NewTable(quiet, "")
	table.Apply([]v1.VirtualService{virtual("a", plain("10.30.0.1", "10.18.0.1")), virtual("b", plain("10.30.0.2"))}, nil)
	if c := condition(t, table, "a", "Programmed"); c.Reason != "NoModule" {
		t.Errorf("%+v", c)
	}
	p := follow(t, table)
	if c := condition(t, table, "a", "Programmed"); c.Status != "False" || c.Reason != "Pending" {
		t.Errorf("%+v", c)
	}
	p.sync().expect("at first", p.names(), "a b")
	if c := condition(t, table, "a", "Programmed"); c.Status != "True" || c.Reason != "Synced" {
		t.Errorf("%+v", c)
	}
	want := v1.VirtualServiceSpec{
		Addresses: []v1.VirtualAddress{{Address: "10.30.0.1", Policy: v1.PolicyRoundRobin}},
		Instances: []v1.VirtualInstance{{Name: "i0", Addresses: []string{"10.18.0.1"}, Weight: 1}},
	}
	if diff := cmp.Diff(want, p.has["a"].Spec); diff != "" {
		t.Error(diff)
	}
	updates := p.updates
	table.Apply([]v1.VirtualService{virtual("a", plain("10.30.0.1", "10.18.0.1"))}, nil)
	if p.sync().updates != updates {
		t.Error("notified of what is the same")
	}
	table.Apply([]v1.VirtualService{virtual("a", plain("10.30.0.1", "10.18.0.9")), virtual("c", plain("10.30.0.3"))},
		[]string{"b"})
	p.sync().expect("then", p.names()+" "+p.targets("a"), "a c i0=10.18.0.9@")
	if p.updates != updates+1 {
		t.Errorf("%d updates for one change", p.updates-updates)
	}
}

// What is many comes in parts, also when a part is refused, or changes come in between.
func TestPartsAndRefusals(t *testing.T) {
	table := NewTable(quiet, "")
	var all []v1.VirtualService
	for i := range 3 * watch.MaxResources / 2 {
		all = append(all, virtual(fmt.Sprintf("s%04d", i), plain(fmt.Sprintf("10.30.%d.%d", i/250, i%250))))
	}
	big := virtual("big", v1.VirtualServiceSpec{Addresses: []v1.VirtualAddress{{Address: "10.31.0.1"}}})
	for i := range 10000 {
		big.Spec.Instances = append(big.Spec.Instances, v1.VirtualInstance{Name: strings.Repeat("n", 55) + fmt.Sprint(i),
			Node: "2001:db8:1111:2222:3333:4444:5555:6666",
			Addresses: []string{netip.AddrFrom4([4]byte{10, 18, byte(i >> 8), byte(i)}).String(),
				fmt.Sprintf("2001:db8:1111:2222:3333:4444:5555:%x", i+1)}})
	}
	table.Apply(append(all, big), nil)
	p := follow(t, table)
	u, _ := p.subscription.Next()
	if !u.Reset || u.Complete {
		t.Errorf("the first part: reset %v, complete %v", u.Reset, u.Complete)
	}
	p.take(u)
	p.subscription.Ack(u, nil)
	table.Apply(nil, []string{"s0000", "s0749"}) // one that was sent, one that was not
	u, _ = p.subscription.Next()
	p.subscription.Ack(u, errors.New("no room"))
	if c := condition(t, table, "s0001", "Programmed"); c.Status != "False" || !strings.Contains(c.Message, "no room") {
		t.Errorf("%+v", c)
	}
	u, _ = p.subscription.Next()
	if !u.Reset {
		t.Error("it is not sent all again after a refusal")
	}
	p.take(u)
	p.subscription.Ack(u, nil)
	p.sync()
	if len(p.has) != len(all)+1-2 || len(p.has["big"].Spec.Instances) != 10000 {
		t.Errorf("has %d virtual services, %d instances of the large one", len(p.has), len(p.has["big"].Spec.Instances))
	}
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func TestInstancesFollowServices(t *testing.T) {
	table := NewTable(quiet, "")
	spec := v1.VirtualServiceSpec{Addresses: []v1.VirtualAddress{{Address: "10.30.0.1"}}, Instances: []v1.VirtualInstance{
		{Name: "a", Service: "web"}, {Name: "b", Addresses: []string{"10.18.0.7"}, Node: "192.0.2.9"}}}
	table.Apply([]v1.VirtualService{virtual("v", spec), virtual("other", plain("10.30.0.2", "10.19.0.1"))}, nil)
	p := follow(t, table).sync()
	p.expect("without the service", p.targets("v"), "b=10.18.0.7@192.0.2.9")
	if c := condition(t, table, "v", "Resolved"); c.Status != "False" ||
		!strings.Contains(c.Message, "there is no Service web") {
		t.Errorf("%+v", c)
	}
	updates := p.updates
	table.SetLocals(map[string][]netip.Prefix{"web": nil, "db": prefixes("10.18.0.3/26")})
	if c := condition(t, table, "v", "Resolved"); !strings.Contains(c.Message, "has no address now") {
		t.Errorf("%+v", c)
	}
	table.SetLocals(map[string][]netip.Prefix{"web": prefixes("10.18.0.5/26", "10.18.0.6/26", "fd00::5/64"),
		"db": prefixes("10.18.0.3/26")})
	p.sync().expect("with it", p.targets("v"), "a=10.18.0.5,fd00::5@web b=10.18.0.7@192.0.2.9")
	if c := condition(t, table, "v", "Resolved"); c.Status != "True" {
		t.Errorf("%+v", c)
	}
	table.SetLocals(map[string][]netip.Prefix{"web": prefixes("10.18.0.8/26"), "db": prefixes("10.18.0.7/26")})
	p.sync().expect("moved, and the other is here", p.targets("v"), "a=10.18.0.8@web b=10.18.0.7@db")
	table.SetLocals(map[string][]netip.Prefix{"db": prefixes("10.18.0.7/26")})
	p.sync().expect("gone", p.targets("v"), "b=10.18.0.7@db")
	table.SetLocals(map[string][]netip.Prefix{"db": prefixes("10.18.0.7/26"), "new": prefixes("10.50.0.1/26")})
	if p.sync().updates != updates+3 {
		t.Errorf("%d updates for three changes", p.updates-updates)
	}
}

// dynamic is a resolver that does what the test says.
type dynamic struct {
	asked []netip.Addr
	idle  []string
}

func (*dynamic) Source() string                  { return "test" }
func (*dynamic) Run(context.Context, Sink) error { return nil }
func (d *dynamic) Lookup(a netip.Addr) bool {
	d.asked = append(d.asked, a)
	return a.Is4()
}
func (d *dynamic) Release(name string) { d.idle = append(d.idle, name) }
func (*dynamic) Err() error            { return nil }

func TestLookupIsFoundNotFoundOrReleased(t *testing.T) {
	r := &dynamic{}
	table := NewTable(quiet, "", r)
	p, other := follow(t, table).sync(), follow(t, table).sync()
	v4, v6 := netip.MustParseAddr("10.30.0.1"), netip.MustParseAddr("fdff::1")
	p.subscription.Handle(sdk.Requests{Resolve: []netip.Addr{v4, v6, v4, netip.MustParseAddr("::ffff:10.30.0.1")}})
	other.subscription.Handle(sdk.Requests{Resolve: []netip.Addr{v4}})
	if len(r.asked) != 2 {
		t.Errorf("asked for %v", r.asked)
	}
	p.sync().expect("what no resolver has", fmt.Sprint(p.unknown), "[fdff::1]")
	table.NotFound("test", v4)
	table.NotFound("test", v4) // late
	p.sync().expect("what it does not find", fmt.Sprint(p.unknown), "[fdff::1 10.30.0.1]")
	other.sync().expect("the other one's", fmt.Sprint(other.unknown), "[10.30.0.1]")

	p.subscription.Handle(sdk.Requests{Resolve: []netip.Addr{v4}})
	table.Put("test", Record{Name: "test.app", Spec: plain("10.30.0.1", "10.18.0.1")})
	other.sync()
	p.sync().expect("found", p.targets("test.app"), "i0=10.18.0.1@")
	if !p.has["test.app"].Dynamic {
		t.Error("not marked as found")
	}
	updates := other.sync().updates
	other.subscription.Handle(sdk.Requests{Resolve: []netip.Addr{v4}}) // knows it, or has just forgotten it
	if other.sync().updates != updates+1 || len(r.asked) != 3 {
		t.Errorf("%d answers; asked for %v", other.updates-updates, r.asked)
	}
	p.subscription.Handle(sdk.Requests{Release: []string{"test.app", "no-such"}})
	p.sync().expect("while the other uses it", p.names(), "test.app")
	other.subscription.Handle(sdk.Requests{Release: []string{"test.app"}})
	p.sync().expect("idle", p.names()+fmt.Sprint(r.idle), "[test.app]")
	table.Put("test", Record{Name: "test.app", Spec: plain("10.30.0.1", "10.18.0.2")}) // sent before the release arrived
	p.sync().expect("what no control plane uses", p.names()+fmt.Sprint(r.idle), "[test.app test.app]")
	p.subscription.Handle(sdk.Requests{Resolve: []netip.Addr{v4}})
	if len(r.asked) != 4 {
		t.Errorf("asked for %v", r.asked)
	}
}

// What a control plane has looked up it gets when the others have it: it sends the packets that wait for it, which meet
// them. It does not wait for one that takes nothing, or has failed.
func TestLookedUpComesLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(quiet, "", &dynamic{})
		p, other := follow(t, table).sync(), follow(t, table).sync()
		<-p.subscription.Ready()
		lookup := sdk.Requests{Resolve: []netip.Addr{netip.MustParseAddr("10.30.0.1")}}
		found := Record{Name: "test.app", Spec: plain("10.30.0.1", "10.18.0.1")}
		p.subscription.Handle(lookup)
		table.Put("test", found)
		p.sync().expect("before the other", p.names(), "")
		u, _ := other.subscription.Next()
		<-p.subscription.Ready()
		p.sync().expect("while the other takes it", p.names(), "")
		other.subscription.Ack(u, nil)
		<-p.subscription.Ready()
		p.sync().expect("after the other", p.names(), "test.app")

		found.Spec = plain("10.30.0.1", "10.18.0.2")
		table.Put("test", found)
		p.sync().expect("a change that was not looked up", p.targets("test.app"), "i0=10.18.0.2@")
		p.subscription.Handle(lookup)
		asked := time.Now()
		updates := p.sync().updates
		for p.updates == updates {
			<-p.subscription.Ready()
			p.sync()
		}
		if waited := time.Since(asked); waited != lastFor {
			t.Errorf("waits %s for one that takes nothing", waited)
		}
		u, _ = other.subscription.Next()
		other.subscription.Ack(u, errors.New("fails"))
		p.subscription.Handle(lookup)
		if p.sync(); p.updates != updates+2 {
			t.Error("waits for one that has failed")
		}
	})
}

// Of two that have looked up the same, the one that others meet gets it first.
func TestLookedUpByBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(quiet, "", &dynamic{})
		p, tunnel := follow(t, table).sync(), follow(t, table).sync()
		tunnel.subscription.GetFirst()
		for _, s := range []*plane{p, tunnel} {
			<-s.subscription.Ready()
			s.subscription.Handle(sdk.Requests{Resolve: []netip.Addr{netip.MustParseAddr("10.30.0.1")}})
		}
		table.Put("test", Record{Name: "test.app", Spec: plain("10.30.0.1", "10.18.0.1")})
		p.sync().expect("before the tunnel", p.names(), "")
		<-p.subscription.Ready()
		u, _ := tunnel.subscription.Next()
		tunnel.take(u)
		tunnel.expect("the tunnel", tunnel.names(), "test.app")
		p.sync().expect("while the tunnel takes it", p.names(), "")
		tunnel.subscription.Ack(u, nil)
		<-p.subscription.Ready()
		p.sync().expect("after the tunnel", p.names(), "test.app")
	})
}

// A control plane that gets all again after an error waits for nothing that it has looked up before.
func TestErrorEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(quiet, "", &dynamic{})
		p, other := follow(t, table).sync(), follow(t, table).sync()
		p.subscription.Handle(sdk.Requests{Resolve: []netip.Addr{netip.MustParseAddr("10.30.0.1")}})
		table.Put("test", Record{Name: "test.app", Spec: plain("10.30.0.1", "10.18.0.1")})
		p.expect("before the other", p.sync().names(), "")
		table.Apply([]v1.VirtualService{virtual("static", plain("10.30.0.2"))}, nil)
		u, _ := p.subscription.Next()
		p.subscription.Ack(u, errors.New("fails"))
		p.sync().expect("all", p.targets("test.app"), "i0=10.18.0.1@")
		table.Put("test", Record{Name: "test.app", Spec: plain("10.30.0.1", "10.18.0.2")})
		p.sync().expect("a change that was not looked up", p.targets("test.app"), "i0=10.18.0.2@")
		other.sync()
	})
}

// A control plane that looks up more and more addresses, and reads no answers, does not fill the agent's memory.
func TestLookupsAreBounded(t *testing.T) {
	r := &dynamic{}
	table := NewTable(quiet, "", r)
	p := follow(t, table).sync()
	for i := range 3 {
		var wanted sdk.Requests
		for n := range 3000 {
			four := netip.AddrFrom4([4]byte{10, 30, byte(i<<4 + n>>8), byte(n)})
			six := netip.AddrFrom16([16]byte{0xfe, 0x80, 14: byte(n >> 8), 15: byte(n)}).WithZone(fmt.Sprint(i))
			wanted.Resolve = append(wanted.Resolve, four, six)
		}
		p.subscription.Handle(wanted)
	}
	table.mu.Lock()
	open, zones := p.subscription.pending(), 0
	for addr := range p.subscription.notFound {
		if addr.Zone() != "" {
			zones++
		}
	}
	table.mu.Unlock()
	if open > maxPending || open < maxPending/2 || zones > 0 {
		t.Errorf("%d addresses are open, %d with zones", open, zones)
	}
	for _, addr := range r.asked {
		table.NotFound("test", addr)
	}
	p.sync()
	v4 := netip.MustParseAddr("10.30.255.1")
	p.subscription.Handle(sdk.Requests{Resolve: []netip.Addr{v4}})
	if r.asked[len(r.asked)-1] != v4 {
		t.Error("no address is asked for after all were answered")
	}
}

// What a control plane wanted goes over to its next version, and is idle with the last.
func TestSubscriptionOfTheNextVersion(t *testing.T) {
	r := &dynamic{}
	table := NewTable(quiet, "", r)
	old := follow(t, table).sync()
	old.subscription.Handle(sdk.Requests{Resolve: []netip.Addr{netip.MustParseAddr("10.30.0.1")}})
	table.Put("test", Record{Name: "test.app", Spec: plain("10.30.0.1", "10.18.0.1")})
	next := follow(t, table).sync()
	old.subscription.Close()
	next.sync().expect("after an upgrade", next.names(), "test.app")
	next.subscription.Close()
	if names := table.Names(); len(names) != 0 || len(r.idle) != 1 {
		t.Errorf("left: %v, idle %v", names, r.idle)
	}
}

// Other processes write the records of resolvers, which no schema has checked. The address of one that is refused is
// unknown, and may be looked up again.
func TestRecordWithoutAValidPort(t *testing.T) {
	r, path := &dynamic{}, filepath.Join(t.TempDir(), "resolved.json")
	table := NewTable(quiet, path, r)
	p := follow(t, table).sync()
	look := func() {
		p.subscription.Handle(sdk.Requests{Resolve: []netip.Addr{netip.MustParseAddr("10.30.0.1")}})
	}
	var refused Record
	for n, port := range []int{-1, 65536, 1 << 32} {
		spec := plain("10.30.0.1", "10.18.0.1")
		spec.Instances[0].Node, spec.Instances[0].NodePort = "192.0.2.9", port
		refused = Record{Name: "test.app", Spec: spec, Keep: true}
		look()
		table.Put("test", refused)
		if names := table.Names(); len(names) != 0 {
			t.Errorf("port %d: %v", port, names)
		}
		if p.sync(); len(r.asked) != n+1 || len(p.unknown) != n+1 || len(r.idle) != n+1 {
			t.Errorf("port %d: asked for %v, unknown %v, released %v", port, r.asked, p.unknown, r.idle)
		}
	}
	look()
	table.Put("test", Record{Name: "test.app", Spec: plain("10.30.0.1", "10.18.0.1")})
	table.Put("test", refused)
	p.sync().expect("the valid one stays", p.targets("test.app"), "i0=10.18.0.1@")
	table.cache.put("test", refused) // by an earlier version
	table = NewTable(quiet, path, r)
	if table.Restore(); len(table.Names())+len(table.cache.found) != 0 {
		t.Errorf("restored %v, stored %v", table.Names(), table.cache.found)
	}
}

// second is another resolver.
type second struct{ dynamic }

func (*second) Source() string { return "test2" }

// One source has the name of another's virtual service: its address is unknown, and it forgets the service.
func TestNameOfTwoSources(t *testing.T) {
	first, other := &dynamic{}, &second{}
	table := NewTable(quiet, "", first, other)
	p := follow(t, table).sync()
	p.subscription.Handle(sdk.Requests{Resolve: []netip.Addr{netip.MustParseAddr("10.30.0.2")}})
	table.Put("test", Record{Name: "test.app", Spec: plain("10.30.0.1", "10.18.0.1"), Keep: true})
	table.Put("test2", Record{Name: "test.app", Spec: plain("10.30.0.2")})
	p.sync().expect("while the other may find it", fmt.Sprint(p.unknown), "[]")
	table.NotFound("test", netip.MustParseAddr("10.30.0.2"))
	p.sync().expect("refused", fmt.Sprint(p.unknown, first.idle, other.idle), "[10.30.0.2] [] [test.app]")
	p.expect("kept", p.targets("test.app"), "i0=10.18.0.1@")
}

// A resource may take an address that is being looked up. The lookup is over with the resolver's answer nevertheless.
func TestResourceTakesWhatIsLookedUp(t *testing.T) {
	r := &dynamic{}
	table := NewTable(quiet, "", r)
	p := follow(t, table).sync()
	look := func() {
		p.subscription.Handle(sdk.Requests{Resolve: []netip.Addr{netip.MustParseAddr("10.30.0.1")}})
	}
	look()
	table.Apply([]v1.VirtualService{virtual("mine", plain("10.30.0.1"))}, nil)
	table.Put("test", Record{Name: "test.app", Spec: plain("10.30.0.1")})
	p.sync().subscription.Handle(sdk.Requests{Release: []string{"test.app"}})
	table.Apply(nil, []string{"mine"})
	if look(); len(r.asked) != 2 {
		t.Errorf("asked for %v", r.asked)
	}
}

// A control plane uses what it knows, even if others have looked it up, or the resolver has sent it unasked: neither
// their release nor the resolver's ends its connections.
func TestKnownIsUsed(t *testing.T) {
	r, path := &dynamic{}, filepath.Join(t.TempDir(), "resolved.json")
	table := NewTable(quiet, path, r)
	p, other := follow(t, table).sync(), follow(t, table).sync()
	other.subscription.Handle(sdk.Requests{Resolve: []netip.Addr{netip.MustParseAddr("10.30.0.1")}})
	app, own := Record{Name: "test.app", Spec: plain("10.30.0.1", "10.18.0.1")},
		Record{Name: "test.own", Spec: plain("10.30.0.2", "10.18.0.2"), Keep: true}
	table.Put("test", app)
	table.Put("test", own)
	other.subscription.Handle(sdk.Requests{Release: []string{"test.app", "test.own"}})
	own.Keep = false
	table.Put("test", own)
	p.sync().expect("looked up by another, and not kept any more", p.names(), "test.app test.own")

	table = NewTable(quiet, path, r)
	table.Restore()
	p, other = follow(t, table).sync(), follow(t, table).sync()
	other.subscription.Handle(sdk.Requests{Release: []string{"test.app", "test.own"}})
	p.sync().expect("after a restart of the agent", p.names(), "test.app test.own")
	p.subscription.Handle(sdk.Requests{Release: []string{"test.app", "test.own"}})
	p.sync().expect("released", p.names()+fmt.Sprint(r.idle), "[test.app test.own]")
}

// A new map set, or process, gets all virtual services again: it does not know what the one before has released, nor
// does a late release of that one count.
func TestRestartUsesAll(t *testing.T) {
	table := NewTable(quiet, "", &dynamic{})
	p, other := follow(t, table).sync(), follow(t, table).sync()
	other.subscription.Handle(sdk.Requests{Resolve: []netip.Addr{netip.MustParseAddr("10.30.0.1")}})
	table.Put("test", Record{Name: "test.app", Spec: plain("10.30.0.1", "10.18.0.1")})
	p.sync().subscription.Handle(sdk.Requests{Release: []string{"test.app"}})
	p.subscription.Restart("b")
	p.sync().expect("sent again", p.names(), "test.app")
	p.subscription.Handle(sdk.Requests{Release: []string{"test.app"}, MapSet: "a"})
	other.subscription.Handle(sdk.Requests{Release: []string{"test.app"}})
	p.sync().expect("released by another", p.names(), "test.app")
	p.subscription.Handle(sdk.Requests{Release: []string{"test.app"}, MapSet: "b"})
	p.sync().expect("released", p.names(), "")
}

func TestResourcesTakeAddresses(t *testing.T) {
	table := NewTable(quiet, "", &dynamic{})
	p := follow(t, table)
	found := plain("10.30.0.1", "10.18.0.1")
	found.Addresses = append(found.Addresses, v1.VirtualAddress{Address: "10.30.0.2"})
	table.Put("test", Record{Name: "test.app", Spec: found, Keep: true})
	table.Apply([]v1.VirtualService{virtual("mine", plain("10.30.0.1"))}, nil)
	p.sync()
	p.expect("what is left", fmt.Sprint(p.has["test.app"].Spec.Addresses), "[{10.30.0.2 roundRobin  }]")
	table.Put("test", Record{Name: "test.app", Spec: found, Keep: true})
	table.Put("test", Record{Name: "test.late", Spec: plain("10.30.0.2"), Keep: true})
	p.sync()
	p.expect("found again", fmt.Sprint(p.has["test.app"].Spec.Addresses, p.has["test.late"].Spec.Addresses),
		"[{10.30.0.2 roundRobin  }] []")
	if c := condition(t, table, "test.app", "Resolved"); c.Reason != "AddressTaken" {
		t.Errorf("%+v", c)
	}
}

// Two resources may change places, and what was found gets back what no resource has any more.
func TestAddressesChangeHands(t *testing.T) {
	table := NewTable(quiet, "", &dynamic{})
	p := follow(t, table)
	has := func() string {
		p.sync()
		var out []string
		for _, name := range slices.Sorted(maps.Keys(p.has)) {
			for _, a := range p.has[name].Spec.Addresses {
				out = append(out, name+"="+a.Address)
			}
		}
		return strings.Join(out, " ")
	}
	table.Apply([]v1.VirtualService{virtual("a", plain("10.30.0.1")), virtual("b", plain("10.30.0.2"))}, nil)
	table.Apply([]v1.VirtualService{virtual("a", plain("10.30.0.2")), virtual("b", plain("10.30.0.1"))}, nil)
	p.expect("changed places", has(), "a=10.30.0.2 b=10.30.0.1")
	table.Put("test", Record{Name: "test.app", Spec: plain("10.30.0.1"), Keep: true})
	p.expect("found, and taken", has(), "a=10.30.0.2 b=10.30.0.1")
	table.Apply([]v1.VirtualService{virtual("b", plain("10.30.0.7"))}, nil)
	p.expect("given back", has(), "a=10.30.0.2 b=10.30.0.7 test.app=10.30.0.1")
	table.Apply([]v1.VirtualService{virtual("c", plain("10.30.0.1"))}, []string{"a"})
	p.expect("taken again", has(), "b=10.30.0.7 c=10.30.0.1")
	table.Apply(nil, []string{"c"})
	p.expect("given back again", has(), "b=10.30.0.7 test.app=10.30.0.1")
	if len(table.shadowed) != 0 {
		t.Errorf("%d lack an address", len(table.shadowed))
	}
}

// An agent that was killed at any moment continues with what was found, until its resolver knows better. What control
// planes have received must be in the file: they would end connections to what the next agent does not know.
func TestFoundSurvivesTheAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolved.json")
	restart := func(resolvers ...Resolver) *Table {
		table := NewTable(quiet, path, resolvers...)
		table.Restore()
		return table
	}
	expect := func(what, want string) {
		t.Helper()
		p := follow(t, restart(&dynamic{})).sync()
		p.expect(what, p.names()+" "+p.targets("test.a"), want)
	}
	table := restart(&dynamic{})
	table.Put("test", Record{Name: "test.a", Spec: plain("10.30.0.1", "10.18.0.1"), Keep: true})
	expect("first", "test.a i0=10.18.0.1@")
	table.Put("test", Record{Name: "test.b", Spec: plain("10.30.0.2"), Keep: true})
	table.Put("test", Record{Name: "test.a", Spec: plain("10.30.0.1", "10.18.0.2"), Keep: true})
	expect("a moved", "test.a test.b i0=10.18.0.2@")
	table.Delete("test", "test.b")
	expect("b ended", "test.a i0=10.18.0.2@")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	table.Put("test", Record{Name: "test.c", Spec: plain("10.30.0.3"), Keep: true})
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text[:(len(whole)+len(text))/2], 0o600); err != nil {
		t.Fatal(err)
	}
	expect("killed while it wrote c", "test.a i0=10.18.0.2@")
	restart(&dynamic{}).Put("test", Record{Name: "test.d", Spec: plain("10.30.0.4"), Keep: true})
	expect("written again", "test.a test.d i0=10.18.0.2@")
	if names := restart().Names(); len(names) != 0 {
		t.Errorf("without the resolver: %v", names)
	}
}

// What was restored waits for control planes, but not indefinitely: there may be none any more.
func TestRestoredIsReleasedWithoutUsers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolved.json")
	before := NewTable(quiet, path, &dynamic{})
	follow(t, before).subscription.Handle(sdk.Requests{Resolve: []netip.Addr{netip.MustParseAddr("10.30.0.1")}})
	before.Put("test", Record{Name: "test.app", Spec: plain("10.30.0.1", "10.18.0.1")})
	before.Put("test", Record{Name: "test.own", Spec: plain("10.30.0.2", "10.18.0.2"), Keep: true})
	for _, used := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			table := NewTable(quiet, path, NewRemote("test", nil))
			table.Restore()
			var running sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			running.Go(func() { _ = table.Run(ctx) })
			time.Sleep(restoredFor - time.Second)
			p := &plane{T: t}
			p.expect("before", strings.Join(table.Names(), " "), "test.app test.own")
			want := "test.own"
			if used {
				follow(t, table)
				want = "test.app test.own"
			}
			time.Sleep(2 * time.Second)
			p.expect(fmt.Sprint("then, used: ", used), strings.Join(table.Names(), " "), want)
			cancel()
			running.Wait()
		})
	}
	table := NewTable(quiet, path, &dynamic{})
	table.Restore()
	(&plane{T: t}).expect("in the file", strings.Join(table.Names(), " "), "test.own")
}

// A file with anything in it is read, and then written.
func TestDamagedFile(t *testing.T) {
	for _, text := range []string{"", "null", "null\n{\"source\":\"test\"}", "{\"test\":null}\nnull", "[]", "{"} {
		path := filepath.Join(t.TempDir(), "resolved.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			table := NewTable(quiet, path, &dynamic{})
			table.Restore()
			table.Put("test", Record{Name: "test.a", Spec: plain("10.30.0.1"), Keep: true})
		}
		table := NewTable(quiet, path, &dynamic{})
		if table.Restore(); len(table.Names()) != 1 {
			t.Errorf("after %q: %v", text, table.Names())
		}
	}
}

// Changes do not make the file grow without limit.
func TestFoundIsWrittenAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolved.json")
	table := NewTable(quiet, path, &dynamic{})
	for n := range 20_000 {
		table.Put("test", Record{Name: "test.a", Spec: plain("10.30.0.1", fmt.Sprintf("10.18.0.%d", n%250)), Keep: true})
	}
	if info, err := os.Stat(path); err != nil || info.Size() > maxJournal+4096 {
		t.Errorf("%v, %v", info, err)
	}
}

// Whatever happens in whatever order, a follower that has taken all has what the table has.
func TestSubscriptionsConverge(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	table := NewTable(quiet, "", &dynamic{})
	p := follow(t, table)
	for range 3000 {
		name, n := fmt.Sprint("s", rng.IntN(30)), rng.IntN(256)
		switch rng.IntN(7) {
		case 0, 1:
			table.Apply([]v1.VirtualService{
				virtual(name, plain(fmt.Sprintf("10.30.0.%d", n), fmt.Sprintf("10.18.0.%d", rng.IntN(4))))}, nil)
		case 2:
			table.Apply(nil, []string{name})
		case 3:
			table.Put("test", Record{Name: "test." + name, Spec: plain(fmt.Sprintf("10.30.0.%d", n)), Keep: n%4 != 0})
		case 4:
			table.SetLocals(map[string][]netip.Prefix{"web": prefixes(fmt.Sprintf("10.18.0.%d/26", rng.IntN(4)))})
		case 5:
			p.subscription.Handle(sdk.Requests{Release: []string{"test." + name}})
		case 6:
			if u, more := p.subscription.Next(); more {
				var err error
				if rng.IntN(3) == 0 {
					err = errors.New("refused")
				} else {
					p.take(u)
				}
				p.subscription.Ack(u, err)
			}
		}
	}
	p.sync().expect("in the end", p.names(), strings.Join(table.Names(), " "))
	for _, name := range table.Names() {
		if got, _ := json.Marshal(p.has[name]); string(got) != string(table.services[name].encoded) {
			t.Errorf("%s: %s, want %s", name, got, table.services[name].encoded)
		}
	}
	owners := map[string]string{}
	for name, s := range p.has {
		for _, a := range s.Spec.Addresses {
			if other := owners[a.Address]; other != "" && !strings.Contains(name+other, "test.") {
				continue // resources are checked together before they are applied
			} else if other != "" {
				t.Errorf("%s is the address of %s and %s", a.Address, name, other)
			}
			owners[a.Address] = name
		}
	}
}

func TestCheck(t *testing.T) {
	good := v1.VirtualServiceSpec{
		Addresses: []v1.VirtualAddress{{Address: "10.30.0.2", Policy: v1.PolicyClosest, AffinityTimeout: "86400s"},
			{Address: "fdff:2000::2", AffinityTimeout: "1s"},
			{Address: "10.30.1.1", Instance: "a"}},
		Ports: []v1.VirtualPort{{Port: 80}, {Port: 80, Protocol: v1.ProtocolUDP}},
		Instances: []v1.VirtualInstance{{Name: "a", Addresses: []string{"10.18.0.5", "fd00::5"}, Node: "192.0.2.2"},
			{Name: "b", Service: "web"}},
	}
	if err := Check(virtual("v", good)); err != nil {
		t.Error(err)
	}
	if err := Check(virtual("v", v1.VirtualServiceSpec{Addresses: good.Addresses[:2]})); err != nil {
		t.Errorf("without instances: %v", err)
	}
	for name, c := range map[string]struct {
		change func(*v1.VirtualServiceSpec)
		field  string
		reason string
	}{
		"no address": {func(s *v1.VirtualServiceSpec) { s.Addresses[0].Address = "web" }, "spec.addresses[0].address",
			"is not an address"},
		"prefix": {func(s *v1.VirtualServiceSpec) { s.Addresses[0].Address = "10.30.0.2/32" },
			"spec.addresses[0].address", "is not an address"},
		"mapped": {func(s *v1.VirtualServiceSpec) { s.Addresses[0].Address = "::ffff:10.30.0.2" },
			"spec.addresses[0].address", "write 10.30.0.2"},
		"zone": {func(s *v1.VirtualServiceSpec) { s.Addresses[0].Address = "fd00::1%eth0" },
			"spec.addresses[0].address", "zone"},
		"multicast": {func(s *v1.VirtualServiceSpec) { s.Addresses[0].Address = "224.0.0.1" },
			"spec.addresses[0].address", "not an address that"},
		"broadcast": {func(s *v1.VirtualServiceSpec) { s.Addresses[0].Address = "255.255.255.255" },
			"spec.addresses[0].address", "not an address that"},
		"twice": {func(s *v1.VirtualServiceSpec) { s.Addresses[1].Address = "10.30.0.2" },
			"spec.addresses[1].address", "twice"},
		"twice, spelled out": {func(s *v1.VirtualServiceSpec) { s.Addresses[0].Address = "fdff:2000:0::0002" },
			"spec.addresses[1].address", "twice"},
		"policy and instance": {func(s *v1.VirtualServiceSpec) {
			s.Addresses[2].Policy = v1.PolicyClosest
		}, "spec.addresses[2]",
			"instance and policy"},
		"affinity of one": {func(s *v1.VirtualServiceSpec) { s.Addresses[2].AffinityTimeout = "3h" },
			"spec.addresses[2].affinityTimeout", "single instance"},
		"affinity in parts of seconds": {func(s *v1.VirtualServiceSpec) { s.Addresses[0].AffinityTimeout = "1500ms" },
			"spec.addresses[0].affinityTimeout", "whole seconds"},
		"affinity of no time": {func(s *v1.VirtualServiceSpec) { s.Addresses[0].AffinityTimeout = "0s" },
			"spec.addresses[0].affinityTimeout", "set 1s to 24h"},
		"affinity without end": {func(s *v1.VirtualServiceSpec) { s.Addresses[0].AffinityTimeout = "24h1s" },
			"spec.addresses[0].affinityTimeout", "set 1s to 24h"},
		"unknown instance": {func(s *v1.VirtualServiceSpec) { s.Addresses[2].Instance = "c" }, "spec.addresses[2].instance",
			"no instance c"},
		"family": {func(s *v1.VirtualServiceSpec) {
			s.Instances = s.Instances[:1]
			s.Instances[0].Addresses = []string{"10.18.0.5"}
		}, "spec.addresses[1].address", "is IPv6"},
		"family of the one": {func(s *v1.VirtualServiceSpec) {
			s.Instances[0].Addresses = []string{"fd00::5"}
		}, "spec.addresses[2].address",
			"is IPv4"},
		"instance twice": {func(s *v1.VirtualServiceSpec) { s.Instances[1].Name = "a" }, "spec.instances[1].name",
			"twice"},
		"neither": {func(s *v1.VirtualServiceSpec) { s.Instances[1].Service = "" }, "spec.instances[1]",
			"either addresses, or service"},
		"both": {func(s *v1.VirtualServiceSpec) { s.Instances[1].Addresses = []string{"10.18.0.6"} },
			"spec.instances[1]", "either addresses, or service"},
		"service elsewhere": {func(s *v1.VirtualServiceSpec) { s.Instances[1].Node = "192.0.2.2" }, "spec.instances[1].node",
			"on this node"},
		"node": {func(s *v1.VirtualServiceSpec) { s.Instances[0].Node = "node-2" }, "spec.instances[0].node",
			"is not an address"},
		"port of no node": {func(s *v1.VirtualServiceSpec) { s.Instances[0].Node, s.Instances[0].NodePort = "", 50199 },
			"spec.instances[0].nodePort", "set node too"},
		"node port": {func(s *v1.VirtualServiceSpec) {
			s.Instances[1] = v1.VirtualInstance{Name: "x", Addresses: []string{"10.18.9.9"}, Node: "192.0.2.9", NodePort: 65536}
		}, "spec.instances[1].nodePort", "1 to 65535"},
		"two of a family": {func(s *v1.VirtualServiceSpec) { s.Instances[0].Addresses[1] = "10.18.0.6" },
			"spec.instances[0].addresses", "two addresses of one family"},
		"virtual itself": {func(s *v1.VirtualServiceSpec) { s.Instances[0].Addresses[0] = "10.30.0.2" },
			"spec.instances[0].addresses[0]", "virtual addresses itself"},
		"port twice": {func(s *v1.VirtualServiceSpec) { s.Ports[1].Protocol = "" }, "spec.ports[1].port",
			"tcp port 80 occurs twice"},
		"target port of no port": {func(s *v1.VirtualServiceSpec) {
			s.Instances[0].TargetPorts = []v1.VirtualPort{{Port: 80, TargetPort: 8080}, {Port: 81, TargetPort: 8081}}
		}, "spec.instances[0].targetPorts[1].port", "tcp port 81 is not in spec.ports"},
		"target port twice": {func(s *v1.VirtualServiceSpec) {
			s.Instances[0].TargetPorts = []v1.VirtualPort{{Port: 80, TargetPort: 1}, {Port: 80, TargetPort: 2, Protocol: "tcp"}}
		}, "spec.instances[0].targetPorts[1].port", "tcp port 80 occurs twice"},
		"excluded port of no port": {func(s *v1.VirtualServiceSpec) {
			s.Instances[0].ExcludedPorts = []v1.ExcludedPort{{Port: 80}, {Port: 80, Protocol: "sctp"}}
		}, "spec.instances[0].excludedPorts[1].port", "sctp port 80 is not in spec.ports"},
		"excluded port twice": {func(s *v1.VirtualServiceSpec) {
			s.Instances[1].ExcludedPorts = []v1.ExcludedPort{{Port: 80}, {Port: 80, Protocol: "tcp", Draining: true}}
		}, "spec.instances[1].excludedPorts[1].port", "tcp port 80 occurs twice"},
		"SCTP to another port": {func(s *v1.VirtualServiceSpec) {
			s.Ports[1] = v1.VirtualPort{Port: 80, TargetPort: 8080, Protocol: v1.ProtocolSCTP}
		}, "spec.ports[1].targetPort", "is 8080, but SCTP ports are not translated: instances have to listen on port 80"},
		"SCTP to another port of an instance": {func(s *v1.VirtualServiceSpec) {
			s.Ports[1] = v1.VirtualPort{Port: 80, TargetPort: 80, Protocol: v1.ProtocolSCTP}
			s.Instances[0].TargetPorts = []v1.VirtualPort{{Port: 80, TargetPort: 80, Protocol: "sctp"}}
			s.Instances[1].TargetPorts = []v1.VirtualPort{{Port: 80, TargetPort: 8080, Protocol: "sctp"}}
		}, "spec.instances[1].targetPorts[0].targetPort", "SCTP ports are not translated"},
	} {
		spec := v1.VirtualServiceSpec{Addresses: slices.Clone(good.Addresses), Ports: slices.Clone(good.Ports),
			Instances: slices.Clone(good.Instances)}
		spec.Instances[0].Addresses = slices.Clone(good.Instances[0].Addresses)
		c.change(&spec)
		var wrong *apierrors.Invalid
		if err := Check(virtual("v", spec)); !errors.As(err, &wrong) || wrong.Field != c.field ||
			!strings.Contains(wrong.Reason, c.reason) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheckTogether(t *testing.T) {
	a, b := virtual("a", plain("10.30.0.1", "10.18.0.1")), virtual("b", plain("fdff::2", "10.18.0.1"))
	b.Spec.Addresses = append(b.Spec.Addresses, v1.VirtualAddress{Address: "10.30.0.2"})
	for name, c := range map[string]struct {
		changed []v1.VirtualService
		want    string
	}{
		"nothing":        {nil, ""},
		"the same again": {[]v1.VirtualService{a, b}, ""},
		"both change places": {[]v1.VirtualService{virtual("a", plain("10.30.0.2")),
			virtual("b", plain("10.30.0.1"))}, ""},
		"one takes the other's": {[]v1.VirtualService{virtual("c", plain("10.30.0.1"))},
			"a and c both have the address 10.30.0.1"},
		"however it is written": {[]v1.VirtualService{virtual("c", plain("fdff:0::0:2"))},
			"b and c both have the address fdff::2"},
		"two new ones": {[]v1.VirtualService{virtual("c", plain("10.30.0.5")),
			virtual("d", plain("10.30.0.5"))}, "c and d both have the address 10.30.0.5"},
		"a new instance is virtual": {[]v1.VirtualService{virtual("c", plain("10.30.0.3", "10.30.0.2"))},
			"VirtualService c: an instance has the address 10.30.0.2, which is a virtual address of b"},
		"an old instance would be": {[]v1.VirtualService{virtual("c", plain("10.18.0.1"))},
			"which is a virtual address of c"},
		"two new ones, one an instance": {[]v1.VirtualService{virtual("c", plain("10.30.0.5")),
			virtual("d", plain("10.30.0.6", "10.30.0.5"))}, "VirtualService d: an instance"},
	} {
		all := map[string]v1.VirtualService{"a": a, "b": b}
		for _, s := range c.changed {
			all[s.Metadata.Name] = s
		}
		err := CheckTogether(all, c.changed)
		var conflict *apierrors.Conflict
		if c.want == "" && err != nil || c.want != "" &&
			(!errors.As(err, &conflict) || !strings.Contains(conflict.Reason, c.want)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// BenchmarkChange is one change of a table of 10,000 virtual services with 100,000 instances.
func BenchmarkChange(b *testing.B) {
	table := NewTable(quiet, "")
	var all []v1.VirtualService
	for i := range 10000 {
		s := virtual(fmt.Sprint("s", i), plain(netip.AddrFrom4([4]byte{10, 30, byte(i >> 8), byte(i)}).String()))
		for j := range 10 {
			s.Spec.Instances = append(s.Spec.Instances, v1.VirtualInstance{Name: fmt.Sprint("i", j),
				Addresses: []string{netip.AddrFrom4([4]byte{10, byte(64 + j), byte(i >> 8), byte(i)}).String()}})
		}
		all = append(all, s)
	}
	table.Apply(all, nil)
	f := table.Subscribe("proxy")
	drain := func() {
		for u, more := f.Next(); more; u, more = f.Next() {
			f.Ack(u, nil)
		}
	}
	drain()
	n := 0
	for b.Loop() {
		n++
		table.SetLocals(map[string][]netip.Prefix{"web": prefixes(fmt.Sprintf("10.64.0.%d/26", n%2))})
		drain()
	}
}
