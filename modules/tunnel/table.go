// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// located is the address of an instance.
type located struct {
	addr    netip.Addr
	node    netip.Addr // invalid: this one
	port    uint16     // of the node; 0: not known
	virtual netip.Addr // that stands for this instance alone; invalid: none
}

// locate returns the addresses of a service's instances with their nodes. An instance's virtual address is the first of
// the same IP version; texts that are not addresses are skipped.
func locate(service sdk.VirtualService) (out []located) {
	virtual := map[string][]netip.Addr{}
	for _, a := range service.Spec.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && a.Instance != "" {
			virtual[a.Instance] = append(virtual[a.Instance], addr)
		}
	}
	for _, i := range service.Spec.Instances {
		node, _ := netip.ParseAddr(i.Node)
		for _, text := range i.Addresses {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				continue
			}
			l := located{addr: addr, node: node, port: uint16(i.NodePort)}
			for _, v := range virtual[i.Name] {
				if v.Is4() == addr.Is4() && !l.virtual.IsValid() {
					l.virtual = v
				}
			}
			out = append(out, l)
		}
	}
	return
}

// link is an interface of the node that the tunnel is attached to.
type link struct {
	sdk.Attachment
	addrs []netip.Prefix
}

func (t *tunnel) links() (out []link) {
	for _, i := range t.live.Attachments() {
		if i.Service == "" {
			out = append(out, link{i, parsePrefixes(i.Addresses)})
		}
	}
	return
}

func parsePrefixes(texts []string) (out []netip.Prefix) {
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			out = append(out, p)
		}
	}
	return
}

// locals are this node's addresses on the underlay.
func (c *config) locals(all []link) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, addr := range c.local {
		out[addr] = true
	}
	for _, l := range all {
		for _, p := range l.addrs {
			out[p.Addr()] = true
		}
	}
	return out
}

// way is how a node is reached: by the interface with an address in its network, else by the first one. With it come
// the IPsec policies of this node.
func (c *config) way(to netip.Addr, all []link) (node, *sdk.IPsec) {
	n := node{Addr: to.As16()}
	if c.locals(all)[to] {
		n.Self = 1
		return n, nil
	}
	if len(all) == 0 {
		return n, nil
	}
	at := max(0, slices.IndexFunc(all, func(l link) bool {
		return slices.ContainsFunc(l.addrs, func(p netip.Prefix) bool { return p.Contains(to) })
	}))
	local := c.source(to, all[at].addrs)
	if !local.IsValid() && c.Mode != modeDevice {
		return n, nil
	}
	n.Ifindex, n.MTU = all[at].Ifindex, uint32(max(all[at].MTU, 1280))
	if c.MTU != 0 {
		n.MTU = uint32(c.MTU)
	}
	if local.IsValid() {
		n.Local = local.As16()
	}
	return n, all[at].IPsec
}

// source is this node's address for packets to another: the one of the configuration, else one in the same network,
// else any with the same scope.
func (c *config) source(to netip.Addr, addrs []netip.Prefix) (out netip.Addr) {
	for _, addr := range c.local {
		if addr.Is4() == to.Is4() {
			return addr
		}
	}
	for _, p := range addrs {
		switch {
		case p.Addr().Is4() != to.Is4() || p.Addr().IsLinkLocalUnicast() != to.IsLinkLocalUnicast():
		case p.Contains(to):
			return p.Addr()
		case !out.IsValid():
			out = p.Addr()
		}
	}
	return
}

// apply brings the tables up to date. What a node is comes before what points to it.
func (t *tunnel) apply() error {
	all := t.links()
	locals := t.config.locals(all)
	sharing.Lock()
	defer sharing.Unlock()
	places, err := readPlaces(t.live.Maps)
	if err != nil {
		return err
	}
	hosts, names, ports := map[address]end{}, map[address]name{}, map[netip.Addr]uint16{}
	for _, service := range slices.Sorted(maps.Keys(t.virtual)) {
		for _, l := range t.virtual[service] {
			at := uint32(0)
			if l.node.IsValid() && !locals[l.node] {
				if at, err = places.take(l.node); err != nil {
					return err
				}
				if _, taken := hosts[l.addr.As16()]; !taken {
					hosts[l.addr.As16()] = end{Node: at}
				}
				ports[l.node] = cmp.Or(ports[l.node], l.port)
				l.addTo(names, at)
			}
		}
	}
	before, err := sdk.ReadTable[address, end](t.live.Maps, mapHosts)
	if err != nil {
		return err
	}
	for _, i := range t.live.Attachments() {
		addServices(hosts, i, func(a address, e end) bool { return t.takes(hosts, before, a, e) })
	}
	if err := t.syncNodes(places, all, ports, localsOf(hosts)); err != nil {
		return err
	}
	if err := syncOwn(t.live.Maps, locals); err != nil {
		return err
	}
	if err := syncRaw(t.live.Maps, all); err != nil {
		return err
	}
	return errors.Join(t.syncHosts(t.live.Maps, hosts), t.syncNames(names))
}

// syncNodes writes how nodes are reached, and the keys shared with them. ports are those of nodes that receive on a
// port of their own, ours the addresses of this node's services.
func (t *tunnel) syncNodes(places *places, all []link, ports map[netip.Addr]uint16, ours []netip.Prefix) error {
	ways, refused := map[netip.Addr]node{}, map[netip.Addr]string{}
	for at, n := range places.nodes {
		addr := n.Addr.addr()
		if n.Addr == (address{}) {
			continue
		}
		w, ipsec := t.config.way(addr, all)
		w.Port = uint32(ports[addr])
		why := ""
		if w.Refuse, why = t.config.refusal(w, ipsec, t.innerOf(addr), ours); why != "" {
			refused[addr] = why
		}
		if learned := t.pathTo(addr); learned != 0 {
			w.MTU = min(w.MTU, uint32(learned))
		}
		if err := t.config.writeKeys(t.live.Maps, t.half, uint32(at), w); err != nil {
			return err
		}
		if err := places.set(uint32(at), w); err != nil {
			return err
		}
		ways[addr] = w
	}
	t.ways = ways
	t.setRefused(t.live.Module, refused)
	return nil
}

// syncRaw writes which underlay interfaces have no link header.
func syncRaw(maps sdk.Maps, all []link) error {
	var raw [maxRaw]uint32
	n := 0
	for _, l := range all {
		if l.LinkType == "" {
			continue
		}
		if n == maxRaw {
			return fmt.Errorf("more than %d underlay interfaces without link header", maxRaw)
		}
		raw[n] = l.Ifindex
		n++
	}
	return maps.Put(mapRaw, uint32(0), raw)
}

// takes reports whether a service of this node gets an address that it has. Who runs a service may give it any address,
// and so must not get what is for others: for instances elsewhere, nor for a service that has had the address before.
func (t *tunnel) takes(hosts, before map[address]end, a address, e end) bool {
	other, taken := hosts[a]
	if !taken {
		was, there := before[a]
		return t.complete || !there || was.Node == 0 // a remote instance may not have been received yet
	}
	return other.Node == 0 && before[a].Ifindex == e.Ifindex
}

func always(address, end) bool { return true }

// addServices adds the addresses of a service of this node that it gets.
func addServices(hosts map[address]end, i sdk.Attachment, takes func(address, end) bool) {
	if i.Service == "" {
		return
	}
	e := end{Ifindex: i.Ifindex, MAC: macOf(i.MAC)}
	if len(i.Ingress) == 0 {
		e.Flags |= straight
	}
	for _, p := range parsePrefixes(i.Addresses) {
		if a := address(p.Addr().As16()); !p.Addr().IsLinkLocalUnicast() && takes(a, e) {
			hosts[a] = e
		}
	}
}

func syncOwn(maps sdk.Maps, locals map[netip.Addr]bool) error {
	want := map[address]uint32{}
	for addr := range locals {
		want[addr.As16()] = 1
	}
	return sdk.SyncTable(maps, mapOwn, want, func(address, uint32) bool { return true })
}

// syncHosts writes the addresses. After a restart those of virtual services stay until all services have been received.
func (t *tunnel) syncHosts(maps sdk.Maps, want map[address]end) error {
	if len(want) > maxHosts {
		return fmt.Errorf("%d addresses exceed the maximum of %d", len(want), maxHosts)
	}
	return sdk.SyncTable(maps, mapHosts, want, func(_ address, e end) bool { return e.Node == 0 || t.complete })
}

// places are the nodes with their places in the map.
type places struct {
	nodes *[maxNodes]node
	m     *ebpf.Map
	stats *ebpf.Map
}

// readPlaces reads all nodes of the map set, unused entries (zero address) included, so that their indices are those of
// the map.
func readPlaces(maps sdk.Maps) (*places, error) {
	m, err := maps.Get(mapNodes)
	if err != nil {
		return nil, err
	}
	stats, err := maps.Get(mapStats)
	if err != nil {
		return nil, err
	}
	p := &places{&[maxNodes]node{}, m, stats}
	for at := range p.nodes {
		if err := m.Lookup(uint32(at), &p.nodes[at]); err != nil {
			return nil, fmt.Errorf("read map %s: %w", mapNodes, err)
		}
	}
	return p, nil
}

// take finds the place of a node, or gives it one.
func (p *places) take(addr netip.Addr) (uint32, error) {
	free := 0
	for at := 1; at < maxNodes; at++ {
		switch p.nodes[at].Addr {
		case address(addr.As16()):
			return uint32(at), nil
		case address{}:
			if free == 0 {
				free = at
			}
		}
	}
	if free == 0 {
		return 0, fmt.Errorf("no space for node %s: the maximum of %d is reached", addr, maxNodes-1)
	}
	if err := p.stats.Put(uint32(free), make([]Stats, ebpf.MustPossibleCPU())); err != nil {
		return 0, fmt.Errorf("reset counters: %w", err)
	}
	return uint32(free), p.set(uint32(free), node{Addr: addr.As16()})
}

// sharing is what map sets of a module have to themselves: the map of nodes is one for all of them, and each takes
// places that it has found free. A map set that is being filled is not known to the present one, which must not free
// its places.
var sharing = struct {
	sync.Mutex
	kept map[filled]time.Time
}{kept: map[filled]time.Time{}}

// filled is a node of a map set that may be about to start.
type filled struct {
	nodes ebpf.MapID
	addr  netip.Addr
}

// keepFor is how long a map set may take from being filled to its own first sweep.
const keepFor = 2 * sweepEvery

// keep notes that a node is about to be needed. sharing is locked.
func (p *places) keep(addr netip.Addr) error {
	id, err := p.id()
	if err != nil {
		return err
	}
	maps.DeleteFunc(sharing.kept, func(_ filled, since time.Time) bool { return time.Since(since) > keepFor })
	sharing.kept[filled{id, addr}] = time.Now()
	return nil
}

// id is the same in all map sets.
func (p *places) id() (ebpf.MapID, error) {
	id, err := mapID(p.m)
	if err != nil {
		return 0, fmt.Errorf("map %s: %w", mapNodes, err)
	}
	return id, nil
}

// mapID asks the kernel (BPF_OBJ_GET_INFO_BY_FD, Linux 4.13). Map.Info reads /proc/self/fdinfo, too: what Landlock
// permits there is bound to an inode that the kernel may replace, and then it is denied for the rest of the process.
func mapID(m *ebpf.Map) (ebpf.MapID, error) {
	var info struct{ mapType, id uint32 }
	attr := struct {
		fd, size uint32
		info     unsafe.Pointer
	}{uint32(m.FD()), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET_INFO_BY_FD, uintptr(unsafe.Pointer(&attr)),
		unsafe.Sizeof(attr))
	runtime.KeepAlive(m)
	if errno != 0 {
		return 0, errno
	}
	return ebpf.MapID(info.id), nil
}

// set writes a node that has changed.
func (p *places) set(at uint32, n node) error {
	if p.nodes[at] == n {
		return nil
	}
	if err := p.m.Put(at, n); err != nil {
		return fmt.Errorf("write map %s: %w", mapNodes, err)
	}
	p.nodes[at] = n
	return nil
}

// sweep frees the places of nodes that nothing points to now nor did the last time.
func (t *tunnel) sweep() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.complete {
		return
	}
	needed := map[netip.Addr]bool{}
	for _, p := range t.config.peers {
		needed[p.addr] = true
	}
	for _, list := range t.virtual {
		for _, l := range list {
			needed[l.node] = true
		}
	}
	sharing.Lock()
	defer sharing.Unlock()
	places, err := readPlaces(t.live.Maps)
	if err != nil {
		t.problem = err
		return
	}
	id, err := places.id()
	if err != nil {
		t.problem = err
		return
	}
	names, err := sdk.ReadTable[address, name](t.live.Maps, mapNames)
	if err != nil {
		t.problem = err
		return
	}
	for _, n := range names { // one that could not be deleted must not come to stand for another node
		needed[places.nodes[n.Node%maxNodes].Addr.addr()] = true
	}
	gone := map[uint32]bool{}
	for i, n := range places.nodes {
		at, addr := uint32(i), n.Addr.addr()
		if n.Addr == (address{}) || needed[addr] || time.Since(sharing.kept[filled{id, addr}]) < keepFor {
			continue
		}
		gone[at] = true
		if t.gone[at] {
			t.problem = errors.Join(t.problem, places.set(at, node{}))
		}
	}
	t.gone = gone
}
