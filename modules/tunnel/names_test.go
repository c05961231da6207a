// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"bytes"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/sdk"
)

// named returns a virtual service with one instance, which has its own virtual addresses.
func named(name, node, four, six string, virtual4, virtual6 string) sdk.VirtualService {
	s := virtual(name, instance("0", node, four, six))
	for _, a := range []string{virtual4, virtual6} {
		s.Spec.Addresses = append(s.Spec.Addresses, v1alpha1.VirtualAddress{Address: a, Instance: "0"})
	}
	s.Dynamic = true
	return s
}

// loadNamed loads a tunnel in mode oakestra without configured nodes.
func loadNamed(t *testing.T) *kernel {
	t.Helper()
	k := loadTunnel(t, `{"mode": "oakestra"}`)
	k.tell(sdk.VirtualServiceUpdate{Put: []sdk.VirtualService{
		named("oakestra.own", "", "10.1.0.5", "fd01::5", "10.30.0.1", "fdff::1"),
		named("oakestra.far", "192.0.2.2", "10.2.0.7", "fd02::7", "10.30.0.2", "fdff::2")}})
	return k
}

// Between nodes, packets have the virtual address of the sending instance as source, which services see. It is accepted
// from the instance's node only.
func TestSourcesBetweenNodes(t *testing.T) {
	k := loadNamed(t)
	w := wires["oakestra"]
	w.from, w.to = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	for kind, inner := range inners("10.30.0.1", "fdff::1", "10.2.0.7", "fd02::7") {
		ret, got := k.run(k.wrap, frame(inner), 0)
		if ret != tcRedirect {
			t.Errorf("%s: action %d", kind, ret)
			continue
		}
		if want := frame(w.wrap(inner, be.Uint16(got[34:]))); !bytes.Equal(got, want) {
			t.Errorf("%s:\n got %x\nwant %x", kind, got, want)
		}
	}
	w = fromTo(w, "192.0.2.2")
	for kind, inner := range inners("10.30.0.2", "fdff::2", "10.1.0.5", "fd01::5") {
		ret, got := k.run(k.unwrap(), w.arrival(k, inner), 0)
		want := frame(inner)
		copy(want, []byte{2, 0, 0, 0, 0, 5, 2, 0, 0, 0, 0, 1})
		got = got[:min(len(got), len(want))] // older kernels pad the shortest ones
		if ret != tcRedirect || !bytes.Equal(got, want) {
			t.Errorf("%s: action %d\n got %x\nwant %x", kind, ret, got, want)
		}
		if ret, why := k.reason(k.unwrap(), fromTo(w, "192.0.2.9").arrival(k, inner)); ret != tcShot ||
			why != "unknown_source" {
			t.Errorf("%s from another node: action %d %s", kind, ret, why)
		}
	}
}

// A service that was not looked up on this node is released as well.
func TestServicesOfOthersAreReleased(t *testing.T) {
	k := loadNamed(t)
	var released []string
	k.tunnel.live.Release = func(name string) {
		if name == "oakestra.new" {
			released = append(released, name)
		}
	}
	k.tunnel.live.Resolve = func(a netip.Addr) { t.Errorf("asked for %s", a) }
	told := named("oakestra.new", "192.0.2.3", "10.3.0.7", "fd03::7", "10.30.0.9", "fdff::9")
	now := time.Now()
	for n := range 4 {
		k.tell(sdk.VirtualServiceUpdate{Put: []sdk.VirtualService{told}})
		k.releaseIdle(now.Add(time.Duration(n) * idleFor))
	}
	if !slices.Equal(released, []string{"oakestra.new"}) {
		t.Errorf("released %v", released)
	}
}

// arrivals returns the frames that the control plane has delivered again.
func (k *kernel) arrivals() *[][]byte {
	frames := &[][]byte{}
	k.tunnel.live.Arrive = func(ifindex uint32, frame []byte) bool {
		if ifindex != 1 { // that of test runs
			k.t.Errorf("at interface %d", ifindex)
		}
		*frames = append(*frames, frame)
		return true
	}
	return frames
}

// waitHeld waits until n packets are held.
func (k *kernel) waitHeld(n int) {
	k.t.Helper()
	wait.Until(k.t, "packets are held", func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.held.packets) == n
	}, func() any { k.mu.Lock(); defer k.mu.Unlock(); return len(k.held.packets) })
}

// An unknown sender is looked up once, and its packets are held until it is known. It is released when it is idle.
func TestUnknownSenders(t *testing.T) {
	k := loadNamed(t)
	var mu sync.Mutex
	var asked []netip.Addr
	var released []string
	k.tunnel.live.Resolve = func(a netip.Addr) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, a)
	}
	k.tunnel.live.Release = func(name string) {
		if name == "oakestra.new" {
			released = append(released, name)
		}
	}
	k.following()
	again := k.arrivals()
	w := fromTo(wires["oakestra"], "192.0.2.3")
	packet := w.arrival(k, ip("10.30.0.9", "10.1.0.5", 17, udpBody(9)))
	for range 3 {
		if ret, why := k.reason(k.unwrap(), packet); ret != tcShot || why != "held" {
			t.Fatalf("action %d %s", ret, why)
		}
	}
	k.waitHeld(3)
	wait.Until(t, "the lookup", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Equal(asked, []netip.Addr{netip.MustParseAddr("10.30.0.9")})
	}, func() any { mu.Lock(); defer mu.Unlock(); return asked })
	k.mu.Lock()
	if by := k.asked.of; by[w.from].pending != 1 || len(by) != 1 {
		t.Errorf("by outer address: %v", by)
	}
	k.mu.Unlock()
	k.tell(sdk.VirtualServiceUpdate{Put: []sdk.VirtualService{
		named("oakestra.new", "192.0.2.3", "10.3.0.7", "fd03::7", "10.30.0.9", "fdff::9")}})
	ret, direct := k.run(k.unwrap(), packet, 0)
	if ret != tcRedirect || len(*again) != 3 || len(k.held.packets) != 0 || k.held.counts != (heldCounts{Passed: 3}) {
		t.Errorf("known: action %d, %d arrive again, %+v", ret, len(*again), k.held)
	}
	for _, frame := range *again {
		if ret, got := k.run(k.unwrap(), frame, 0); ret != tcRedirect || !bytes.Equal(got, direct) {
			t.Errorf("arrived again: action %d\n got %x\nwant %x", ret, got, direct)
		}
	}
	now := time.Now()
	k.releaseIdle(now.Add(idleFor)) // its packet arrived after the last check
	k.releaseIdle(now.Add(2 * idleFor))
	if released != nil {
		t.Errorf("released while in use: %v", released)
	}
	k.releaseIdle(now.Add(3 * idleFor))
	if !slices.Equal(released, []string{"oakestra.new"}) {
		t.Errorf("released %v", released)
	}
	asked = nil
	k.releaseIdle(now.Add(5 * idleFor))
	if ret, why := k.reason(k.unwrap(), packet); ret != tcRedirect {
		t.Errorf("another still uses it: action %d %s", ret, why)
	}
	k.releaseIdle(now.Add(6 * idleFor))
	if len(asked) != 1 || len(released) != 1 {
		t.Errorf("in use again: asked %v, released %v", asked, released)
	}
	k.tell(sdk.VirtualServiceUpdate{Remove: []string{"oakestra.new"}})
	if ret, why := k.reason(k.unwrap(), packet); ret != tcShot || why != "held" {
		t.Errorf("gone: action %d %s", ret, why)
	}
}

// Forged sources do not prevent lookups of others, and lookups expire.
func TestLookupsAreBounded(t *testing.T) {
	now, attacker := time.Now(), netip.MustParseAddr("192.0.2.66")
	source := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 31, byte(i >> 8), byte(i)}) }
	l := newLookups()
	for i := range 2 * maxAsked {
		if got := l.begin(source(i), attacker, now); got != (i < maxAskedBy) {
			t.Fatalf("source %d of one outer address is looked up: %v", i, got)
		}
	}
	honest, from := netip.MustParseAddr("10.30.0.9"), netip.MustParseAddr("192.0.2.3")
	if !l.begin(honest, from, now) || l.begin(honest, from, now) || !l.end(honest) || l.end(honest) {
		t.Error("another sender is not looked up once")
	}
	for _, at := range []struct {
		after time.Duration
		want  bool
	}{{askAgain - forgetEach/2, false}, {askAgain, false}, {askAgain + forgetEach/2, true}} {
		if got := l.begin(source(0), attacker, now.Add(at.after)); got != at.want {
			t.Errorf("after %s: looked up again: %v", at.after, got)
		}
	}
	if len(l.pending) != 1 || l.of[attacker].pending != 1 || len(l.of) != 1 {
		t.Errorf("%d are pending, by outer address %v", len(l.pending), l.of)
	}
	for i := range 2 * maxAsked {
		l.begin(source(i), netip.AddrFrom4([4]byte{192, 0, 2, byte(i / maxAskedBy)}), now)
	}
	if len(l.pending) != maxAsked {
		t.Errorf("%d sources are noted, want %d", len(l.pending), maxAsked)
	}
}

// names returns the names in the data plane.
func (k *kernel) names() map[address]name {
	k.t.Helper()
	out, err := sdk.ReadTable[address, name](k.live.Maps, mapNames)
	if err != nil {
		k.t.Fatal(err)
	}
	return out
}

// Unused names are removed, in another mode or with too many names. While a name exists, the index of its node is not
// reused.
func TestStaleNames(t *testing.T) {
	k := loadNamed(t)
	far := address(netip.MustParseAddr("10.30.0.2").As16())
	at := k.names()[far].Node
	if at == 0 {
		t.Fatalf("names %v", k.names())
	}
	services := k.virtual["oakestra.far"]
	delete(k.virtual, "oakestra.far")
	placed := func() bool {
		t.Helper()
		k.sweep()
		k.sweep()
		var n node
		if err := k.live.Maps.Lookup(mapNodes, at, &n); err != nil {
			t.Fatal(err)
		}
		return n.Addr != address{}
	}
	if !placed() {
		t.Error("a node that has a name has lost its place")
	}
	many := map[address]name{}
	for i := range maxNames + 1 {
		many[netip.AddrFrom4([4]byte{10, 31, byte(i >> 8), byte(i)}).As16()] = name{Node: at}
	}
	if err := k.syncNames(many); err == nil || len(k.names()) != 0 {
		t.Errorf("too many: %v, and %d names stay", err, len(k.names()))
	}
	if placed() {
		t.Error("a node without names has kept its place")
	}
	k.virtual["oakestra.far"] = services
	if k.refresh(); len(k.names()) == 0 {
		t.Error("no names")
	}
	k.restart(compileConfig(t, unkeyed))
	if k.refresh(); k.problem != nil || len(k.names()) != 0 {
		t.Errorf("in mode kerb: %v, names %v", k.problem, k.names())
	}
}

// An instance of two virtual services always has the addresses of the first one by name.
func TestNamesInOrder(t *testing.T) {
	k := loadNamed(t)
	k.tell(sdk.VirtualServiceUpdate{Put: []sdk.VirtualService{
		named("oakestra.zoo", "", "10.1.0.5", "fd01::5", "10.30.1.1", "fdff::101"),
		named("oakestra.zap", "192.0.2.9", "10.2.0.7", "fd02::7", "10.30.1.2", "fdff::102")}})
	for range 20 {
		k.refresh()
		places, err := readPlaces(k.live.Maps)
		if err != nil {
			t.Fatal(err)
		}
		far := k.names()[netip.MustParseAddr("10.30.1.2").As16()]
		var at end
		err = k.live.Maps.Lookup(mapHosts, address(netip.MustParseAddr("10.2.0.7").As16()), &at)
		if node := places.nodes[at.Node].Addr.addr(); err != nil || node.String() != "192.0.2.2" ||
			places.nodes[far.Node].Addr.addr().String() != "192.0.2.9" {
			t.Fatalf("the node of 10.2.0.7 is %s, that of 10.30.1.2 %v, %v", node, far, err)
		}
	}
}

// A node can receive on its own port, over IPv4 and IPv6.
func TestPortOfANode(t *testing.T) {
	k := loadTunnel(t, `{"mode": "oakestra"}`)
	far := named("oakestra.far", "192.0.2.2", "10.2.0.7", "fd02::7", "10.30.0.2", "fdff::2")
	for _, port := range []int{50199, 0, 50104} {
		far.Spec.Instances[0].NodePort = port
		k.tell(sdk.VirtualServiceUpdate{Put: []sdk.VirtualService{far}})
		want := uint16(port)
		if port == 0 {
			want = PortOakestra
		}
		for kind, inner := range inners("10.1.0.5", "fd01::5", "10.2.0.7", "fd02::7") {
			ret, got := k.run(k.wrap, frame(inner), 0)
			if dest := be.Uint16(got[36:]); ret != tcRedirect || dest != want {
				t.Errorf("%s: action %d, port %d instead of %d", kind, ret, dest, want)
			}
		}
	}
	if w := k.ways[netip.MustParseAddr("192.0.2.2")]; k.config.portOf(w) != 50104 {
		t.Errorf("%+v", w)
	}
}
