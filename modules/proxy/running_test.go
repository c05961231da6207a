// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	gocmp "github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// testControl is a control plane with maps without traffic; the test acts as the agent.
type testControl struct {
	t      testing.TB
	config *config
	live   sdk.Live
	w      *running
	now    time.Time
	locals []sdk.Attachment
	wanted []netip.Addr
	idle   []string
	sent   []*heldPacket
}

func newTestControl(t testing.TB, config string) *testControl {
	t.Helper()
	return newTestControlOn(t, config, newMaps(t, compileConfig(t, config)))
}

func newTestControlOn(t testing.TB, config string, maps sdk.Maps) *testControl {
	t.Helper()
	p := &testControl{t: t, now: time.Now()}
	p.live = sdk.Live{Module: "px", Maps: maps,
		Attachments: func() []sdk.Attachment { return p.locals },
		Resolve:     func(a netip.Addr) { p.wanted = append(p.wanted, a) },
		Release:     func(name string) { p.idle = append(p.idle, name) },
		Inject: func(ifindex uint32, frame []byte) error {
			p.sent = append(p.sent, &heldPacket{ifindex: ifindex, frame: frame})
			return nil
		}}
	p.restart(config)
	return p
}

func compileConfig(t testing.TB, text string) *config {
	t.Helper()
	return sdktest.Compile[*config](t, Control(), text)
}

// newMaps creates the maps as the agent would for a config.
func newMaps(t testing.TB, p *config) sdk.Maps {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	pkg, err := pkgs.Open(".")
	if err != nil {
		t.Fatalf("%v; run make bpf", err)
	}
	spec, err := pkg.Spec("tc")
	if err != nil {
		t.Fatal(err)
	}
	maps := sdk.Maps{}
	for name, s := range spec.Maps {
		if strings.HasPrefix(name, ".") {
			continue
		}
		s = s.Copy()
		s.MaxEntries = cmp.Or(p.Settings().MaxEntries[name], s.MaxEntries)
		m, err := ebpf.NewMap(s)
		if err != nil {
			t.Fatalf("map %s: %v", name, err)
		}
		t.Cleanup(func() { m.Close() })
		maps[name] = m
	}
	return maps
}

// restart starts a new control plane on the maps.
func (p *testControl) restart(config string) {
	p.t.Helper()
	p.config = compileConfig(p.t, config)
	p.w = sdktest.Open[*running](p.t, p.config, p.live)
}

func (p *testControl) update(u sdk.VirtualServiceUpdate) {
	p.t.Helper()
	free, err := p.w.update(&u, p.now)
	if err != nil {
		p.t.Fatal(err)
	}
	p.w.inject(free)
}

func (p *testControl) put(all ...sdk.VirtualService) {
	p.t.Helper()
	p.update(sdk.VirtualServiceUpdate{Put: all})
}

// all sends all services.
func (p *testControl) all(all ...sdk.VirtualService) {
	p.t.Helper()
	p.update(sdk.VirtualServiceUpdate{Reset: true, Complete: true, Put: all})
}

// webService returns a service with addresses with policies, in both families, and n instances.
func webService(n int, policies ...v1alpha1.Policy) sdk.VirtualService {
	vs := sdk.VirtualService{Name: "web"}
	for i, p := range policies {
		vs.Spec.Addresses = append(vs.Spec.Addresses, v1alpha1.VirtualAddress{Address: fmt.Sprintf("10.30.0.%d", i+1),
			Policy: p},
			v1alpha1.VirtualAddress{Address: fmt.Sprintf("fdff:2000::%d", i+1), Policy: p})
	}
	for i := range n {
		vs.Spec.Instances = append(vs.Spec.Instances, webInstance(i, i+1))
	}
	return vs
}

func webInstance(name, at int) v1alpha1.VirtualInstance {
	return v1alpha1.VirtualInstance{Name: fmt.Sprintf("web-%d", name),
		Addresses: []string{fmt.Sprintf("10.18.%d.%d", at>>8, at&255), fmt.Sprintf("fd00::%x", at)}}
}

// served returns the names of instances for an address, in the order of the slots.
func (p *testControl) served(addr string) []string {
	p.t.Helper()
	var v vip
	if err := p.live.Maps[mapVIPs].Lookup(addressOf(netip.MustParseAddr(addr)), &v); errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	} else if err != nil {
		p.t.Fatal(err)
	}
	out := []string{}
	for i := range v.Count {
		var index uint32
		if err := p.live.Maps[mapSlots].Lookup(v.First+i, &index); err != nil {
			p.t.Fatal(err)
		}
		out = append(out, p.nameOf(index))
	}
	return out
}

func (p *testControl) nameOf(index uint32) string {
	p.t.Helper()
	var owner uint64
	if err := p.live.Maps[mapOwners].Lookup(index, &owner); err != nil {
		p.t.Fatal(err)
	}
	for _, t := range p.w.targets {
		if t.identity == owner {
			return t.name
		}
	}
	return fmt.Sprintf("#%d", index)
}

func (p *testControl) entry(name string) (uint32, instance) {
	p.t.Helper()
	t := p.w.targets[identityOf("web", name)]
	if t == nil {
		p.t.Fatalf("no instance %s", name)
	}
	var e instance
	if err := p.live.Maps[mapInstances].Lookup(t.index, &e); err != nil {
		p.t.Fatal(err)
	}
	return t.index, e
}

func (p *testControl) same(what string, got, want any) {
	p.t.Helper()
	if diff := gocmp.Diff(want, got); diff != "" {
		p.t.Errorf("%s:\n%s", what, diff)
	}
}

func TestPoliciesInMaps(t *testing.T) {
	p := newTestControl(t, "")
	vs := webService(3, v1alpha1.PolicyRoundRobin, v1alpha1.PolicyWeighted, v1alpha1.PolicyLeastConnections,
		v1alpha1.PolicySourceAffinity,
		v1alpha1.PolicyConsistentHash, v1alpha1.PolicyClosest)
	vs.Spec.Addresses = append(vs.Spec.Addresses, v1alpha1.VirtualAddress{Address: "10.30.1.1", Instance: "web-1"})
	vs.Spec.Instances[0].Weight, vs.Spec.Instances[2].Distance = 2, 7
	p.put(vs)
	for _, family := range []string{"10.30.0.%d", "fdff:2000::%d"} {
		at := func(n int) []string { return p.served(fmt.Sprintf(family, n)) }
		p.same("round robin", at(1), []string{"web-0", "web-1", "web-2"})
		p.same("weighted", at(2), []string{"web-0", "web-1", "web-2", "web-0"})
		p.same("least connections", at(3), []string{"web-0", "web-1", "web-2"})
		for _, n := range []int{4, 5} {
			shares := map[string]int{}
			for _, name := range at(n) {
				shares[name]++
			}
			if len(shares) != 3 || shares["web-1"] < 240 || shares["web-0"] < 480 {
				t.Errorf("Maglev table: %v", shares)
			}
		}
		p.same("closest", at(6), []string{"web-2"})
	}
	p.same("one instance", p.served("10.30.1.1"), []string{"web-1"})
	if len(p.w.services["web"].virtuals) != 13 {
		t.Error("addresses are missing")
	}
}

// Each family is served by the instances with an address in it.
func TestFamilies(t *testing.T) {
	p := newTestControl(t, "")
	vs := webService(2, v1alpha1.PolicyRoundRobin)
	vs.Spec.Instances[0].Addresses = vs.Spec.Instances[0].Addresses[:1]
	p.put(vs)
	p.same("IPv4", p.served("10.30.0.1"), []string{"web-0", "web-1"})
	p.same("IPv6", p.served("fdff:2000::1"), []string{"web-1"})
}

func TestPortsInMaps(t *testing.T) {
	p := newTestControl(t, "")
	read := func() map[string]int {
		t.Helper()
		out := map[string]int{}
		if err := each(p.live.Maps[mapPorts], mapPorts, func(keys []portKey, values []port) {
			for i, k := range keys {
				out[fmt.Sprintf("%d/%d", k.Proto, k.Port.number())] += int(values[i].number())
			}
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	vs := webService(1, v1alpha1.PolicyRoundRobin)
	vs.Spec.Addresses = vs.Spec.Addresses[:1]
	vs.Spec.Ports = []v1alpha1.VirtualPort{{Port: 80, TargetPort: 8080}, {Port: 53, Protocol: v1alpha1.ProtocolUDP}}
	p.put(vs)
	p.same("ports", read(), map[string]int{"6/80": 8080, "17/53": 53})
	vs.Spec.Ports = []v1alpha1.VirtualPort{{Port: 80, TargetPort: 8081}, {Port: 443}}
	p.put(vs)
	p.same("changed ports", read(), map[string]int{"6/80": 8081, "6/443": 443})
	vs.Spec.Ports = nil
	p.put(vs)
	p.same("no ports", read(), map[string]int{})
	if p.w.addresses[netip.MustParseAddr("10.30.0.1")].value.Flags != 0 {
		t.Error("all ports are not served")
	}
}

// A redeployed instance keeps its index, gets its new address under a new map set, and is measured from scratch.
func TestRedeployed(t *testing.T) {
	p := newTestControl(t, "")
	vs := webService(2, v1alpha1.PolicyRoundRobin)
	p.put(vs)
	index, before := p.entry("web-0")
	p.w.maps.stats[index].RTT = 99
	vs.Spec.Instances[0] = webInstance(0, 77)
	p.put(vs)
	again, after := p.entry("web-0")
	if again != index || after.Generation != before.Generation+1 || after.Place[after.Generation&1].Addr4 != [4]byte{10,
		18, 0, 77} || after.Flags != 0 {
		t.Errorf("index %d, %+v; before %d, %+v", again, after, index, before)
	}
	if after.Place[before.Generation&1] != before.Place[before.Generation&1] {
		t.Error("the old place was written over while packets may read it")
	}
	if p.w.maps.stats[index].RTT != 0 {
		t.Error("its measurement is that of the old place")
	}
	p.put(vs)
	if _, same := p.entry("web-0"); same != after {
		t.Error("sent the same again, it changes")
	}
}

func TestDrainingAndRemoval(t *testing.T) {
	p := newTestControl(t, "")
	vs := webService(3, v1alpha1.PolicyRoundRobin)
	p.put(vs)
	vs.Spec.Instances[1].Draining = true
	p.put(vs)
	p.same("while one drains", p.served("10.30.0.1"), []string{"web-0", "web-2"})
	index, e := p.entry("web-1")
	if e.Flags != instanceDraining {
		t.Errorf("flags %d of the draining one", e.Flags)
	}
	vs.Spec.Instances[1].Draining = false
	p.put(vs)
	if _, e := p.entry("web-1"); e.Flags != 0 || len(p.served("10.30.0.1")) != 3 {
		t.Error("it does not come back from draining")
	}
	vs.Spec.Instances = slices.Delete(vs.Spec.Instances, 1, 2)
	p.put(vs)
	if _, e := p.entry("web-1"); e.Flags != instanceGone {
		t.Errorf("flags %d of the one that is gone", e.Flags)
	}
	p.same("without it", p.served("10.30.0.1"), []string{"web-0", "web-2"})
	for i := range vs.Spec.Instances {
		vs.Spec.Instances[i].Draining = true
	}
	p.put(vs)
	p.same("while all drain", p.served("10.30.0.1"), []string{})

	// Its index is released when no session refers to it.
	key := flow{Src: address{1}, Dst: address{2}, Ifindex: 7, Proto: protoTCP}
	p.locals = []sdk.Attachment{{Service: "client", Ifindex: 7}}
	p.w.instanceChanged(p.locals[0], true, p.now)
	p.session(key, session{Seen: sdk.Monotonic(), Instance: index, State: stateAnswered})
	p.now = p.now.Add(2 * restFor)
	p.sweep()
	if p.w.byIndex[index] == nil {
		t.Error("freed although a session refers to it")
	}
	if err := p.live.Maps[mapSessions].Delete(key); err != nil {
		t.Fatal(err)
	}
	p.sweep()
	if p.w.byIndex[index] != nil {
		t.Error("not freed")
	}
	vs.Spec.Instances = append(vs.Spec.Instances, webInstance(9, 9))
	p.now = p.now.Add(2 * restFor)
	p.put(vs)
	if again, after := p.entry("web-9"); again != index || after.Generation <= e.Generation || after.Flags != 0 {
		t.Errorf("index %d, %+v; the one before %d, %+v", again, after, index, e)
	}
}

func (p *testControl) session(k flow, s session) {
	p.t.Helper()
	if err := p.live.Maps[mapSessions].Put(k, s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *testControl) sweep() {
	p.t.Helper()
	if err := p.w.sweep(p.now); err != nil {
		p.t.Fatal(err)
	}
}

// After a restart all instances keep their indexes; resent ones do not change, and missing ones are removed.
func TestRestart(t *testing.T) {
	p := newTestControl(t, "")
	p.locals = []sdk.Attachment{{Service: "w0", Interface: "veth0", Ifindex: 7, MAC: "02:00:00:00:00:07",
		Addresses: []string{"10.18.0.1/24"}, Ingress: []string{"px"}}}
	p.w.instanceChanged(p.locals[0], true, p.now)
	vs := webService(3, v1alpha1.PolicyRoundRobin, v1alpha1.PolicyConsistentHash, v1alpha1.PolicyLeastConnections)
	vs.Spec.Ports = []v1alpha1.VirtualPort{{Port: 80, TargetPort: 8080}}
	db := sdk.VirtualService{Name: "db",
		Spec: v1alpha1.VirtualServiceSpec{Addresses: []v1alpha1.VirtualAddress{{Address: "10.30.9.9"}},
			Instances: []v1alpha1.VirtualInstance{{Name: "db-0", Addresses: []string{"10.18.9.9"}}}}}
	gone := vs.Spec.Instances[2]
	p.all(vs, db)
	vs.Spec.Instances = vs.Spec.Instances[:2]
	p.put(vs)
	before := p.dump()
	p.restart("")
	p.same("adopted", p.dump(), before)
	p.update(sdk.VirtualServiceUpdate{Reset: true, Put: []sdk.VirtualService{vs}})
	p.same("sent the first part", p.dump(), before)
	p.update(sdk.VirtualServiceUpdate{Complete: true, Put: []sdk.VirtualService{db}})
	p.same("sent all", p.dump(), before)

	p.restart("")
	p.all(vs)
	if p.served("10.30.9.9") != nil {
		t.Error("a virtual service that was removed meanwhile is still there")
	}
	if db := p.w.targets[identityOf("db", "db-0")]; db == nil || db.entry.Flags != instanceGone {
		t.Error("and so is its instance")
	}
	vs.Spec.Instances = append(vs.Spec.Instances, gone)
	p.put(vs)
	if got := p.served("10.30.0.1"); len(got) != 3 {
		t.Errorf("an instance that comes back: %v", got)
	}
}

// dump returns the contents of the maps.
func (p *testControl) dump() map[string]any {
	p.t.Helper()
	out := map[string]any{}
	read := func(err error) {
		p.t.Helper()
		if err != nil {
			p.t.Fatal(err)
		}
	}
	read(each(p.live.Maps[mapVIPs], mapVIPs, func(k []address, v []vip) {
		for i := range k {
			out["vip "+k[i].addr().String()] = fmt.Sprint(v[i])
		}
	}))
	read(each(p.live.Maps[mapPorts], mapPorts, func(k []portKey, v []port) {
		for i := range k {
			out[fmt.Sprint("port ", k[i])] = v[i].number()
		}
	}))
	for name, m := range map[string]any{mapSlots: uint32(0), mapInstances: instance{}, mapOwners: uint64(0),
		mapLocals: local{}} {
		switch m.(type) {
		case uint32:
			dumpArray[uint32](p, name, out)
		case instance:
			dumpArray[instance](p, name, out)
		case uint64:
			dumpArray[uint64](p, name, out)
		case local:
			dumpArray[local](p, name, out)
		}
	}
	return out
}

func dumpArray[V comparable](p *testControl, name string, out map[string]any) {
	p.t.Helper()
	all, err := readArray[V](p.live.Maps[name], name)
	if err != nil {
		p.t.Fatal(err)
	}
	var zero V
	for i, v := range all {
		if v != zero {
			out[fmt.Sprintf("%s[%d]", name, i)] = fmt.Sprint(v)
		}
	}
}

// Slots and ids are reused: a thousand changes leak none.
func TestChangesLeaveNothing(t *testing.T) {
	p := newTestControl(t, `{"tables": {"slots": 16384, "instances": 64, "addresses": 32, "ports": 64}}`)
	base := webService(3, v1alpha1.PolicyConsistentHash, v1alpha1.PolicyWeighted)
	for i := range 1000 {
		vs := base
		vs.Spec.Instances = slices.Clone(base.Spec.Instances)
		vs.Spec.Instances[i%3] = webInstance(i%3, 100+i)
		vs.Spec.Instances[(i+1)%3].Draining = i%2 == 0
		vs.Spec.Instances[(i+2)%3].Weight = 1 + i%7
		if i%5 == 0 {
			vs.Spec.Instances = append(vs.Spec.Instances, webInstance(1000+i, i))
		}
		if i%3 == 0 {
			vs.Spec.Ports = []v1alpha1.VirtualPort{{Port: uint16(1 + i)}}
		}
		p.put(vs)
		if err := p.w.Health(); err != nil {
			t.Fatalf("change %d: %v", i, err)
		}
		p.now = p.now.Add(600 * time.Millisecond)
		if i%10 == 0 {
			p.sweep()
		}
	}
	p.update(sdk.VirtualServiceUpdate{Remove: []string{"web"}})
	p.now = p.now.Add(time.Minute)
	p.sweep()
	p.w.slots.wake(p.now)
	if len(p.w.targets) != 0 || len(p.w.addresses) != 0 || p.w.slots.used != 0 {
		t.Errorf("%d instances, %d addresses, %d slots are left", len(p.w.targets), len(p.w.addresses), p.w.slots.used)
	}
	for key := range p.dump() {
		if strings.HasPrefix(key, "vip") || strings.HasPrefix(key, "port") || strings.HasPrefix(key, mapOwners) {
			t.Errorf("%s is left in the maps", key)
		}
	}
}

// Services that do not fit are reported, the others work, and they are added when there is room.
func TestFullTables(t *testing.T) {
	p := newTestControl(t, `{"tables": {"instances": 2, "slots": 64}}`)
	other := sdk.VirtualService{Name: "other",
		Spec: v1alpha1.VirtualServiceSpec{
			Instances: []v1alpha1.VirtualInstance{{Name: "o", Addresses: []string{"10.18.9.9"}}}}}
	p.put(other, webService(2, v1alpha1.PolicyRoundRobin))
	err := p.w.Health()
	if err == nil || !strings.Contains(err.Error(), "raise tables.instances, which is 2") {
		t.Errorf("health: %v", err)
	}
	p.same("the rest", p.served("10.30.0.1"), []string{"web-0"})
	p.update(sdk.VirtualServiceUpdate{Remove: []string{"other"}})
	p.now = p.now.Add(time.Minute)
	p.sweep()
	p.now = p.now.Add(time.Minute)
	if err := p.w.again(p.now); err != nil {
		t.Fatal(err)
	}
	if err := p.w.Health(); err != nil {
		t.Error(err)
	}
	p.same("all of it", p.served("10.30.0.1"), []string{"web-0", "web-1"})
	p.put(webService(2, v1alpha1.PolicyConsistentHash))
	if err := p.w.Health(); err == nil || !strings.Contains(err.Error(), "raise tables.slots") {
		t.Errorf("health: %v", err)
	}
	p.same("the run of before", p.served("10.30.0.1"), []string{"web-0", "web-1"})
}

// An address that moves to another virtual service is served in either order of the updates.
func TestAddressMoves(t *testing.T) {
	p := newTestControl(t, "")
	a := webService(1, v1alpha1.PolicyRoundRobin)
	b := sdk.VirtualService{Name: "b", Spec: a.Spec}
	b.Spec.Instances = []v1alpha1.VirtualInstance{{Name: "b-0", Addresses: []string{"10.18.7.7"}}}
	p.put(a)
	p.put(b)
	p.update(sdk.VirtualServiceUpdate{Remove: []string{"web"}})
	p.same("moved", p.served("10.30.0.1"), []string{"b-0"})
}
