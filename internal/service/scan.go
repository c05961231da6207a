// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// scanner resolves services against one dump of the node's links. That dump
// names, for every veth, the namespace of its peer by id and the peer by
// index, so a service's links are those that carry the id of its namespace:
// nothing has to be entered, and equal indexes in other namespaces cannot be
// mistaken for each other.
type scanner struct {
	conn *conn
	xfrm xfrm
	own  nsKey

	byName map[string]rawLink
	byNSID map[int32][]rawLink // veths whose peer is in another namespace, by ifindex
	addrs  []rawAddr
	inside map[int32]inside // what is known of peer namespaces
	ipsec  *sdk.IPsec
	paths  map[string]nsKey // what was at the paths of services; zero if nothing
	// the namespaces that paths have led to, in this scan and in the one before
	located, before map[string]located
	periodic        int // scans that no event has asked for
	dumps           int // of the node's links
}

// located is a namespace that a path has led to. As long as both the file there and the host-side links are the same,
// so is the id: an inode and an id are used again, but not while there are links of that namespace.
type located struct {
	nsKey
	nsid  int32
	outer []int
}

// inside is what a peer namespace holds. It is kept while the host-side links
// are the same: ids are used again for new namespaces, ifindexes of a
// namespace are not.
type inside struct {
	outer []int // ifindexes of the host-side links
	links map[int]rawLink
	addrs []rawAddr
}

func openScanner() (*scanner, error) {
	own, err := nsKeyAt("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	c, err := openConn()
	if err != nil {
		return nil, err
	}
	return &scanner{conn: c, xfrm: openXfrm(), own: own, inside: make(map[int32]inside),
		paths: make(map[string]nsKey)}, nil
}

// another returns a scanner for resolveAlone in another goroutine. The calling thread is in the namespace of s. Only
// its connection is to be closed.
func (s *scanner) another() (*scanner, error) {
	c, err := openConn()
	if err != nil {
		return nil, err
	}
	return &scanner{conn: c, own: s.own, paths: map[string]nsKey{}}, nil
}

func (s *scanner) close() {
	s.xfrm.close()
	s.conn.close()
}

// refresh takes a new dump of the node's links and addresses.
func (s *scanner) refresh() error {
	s.dumps++
	links, err := s.conn.links(noNSID)
	if err != nil {
		return err
	}
	if s.addrs, err = s.conn.addresses(noNSID); err != nil {
		return err
	}
	s.ipsec = s.xfrm.policies()
	sort.Slice(links, func(i, j int) bool { return links[i].Ifindex < links[j].Ifindex })
	s.paths = make(map[string]nsKey)
	s.located, s.before = make(map[string]located, len(s.located)), s.located
	s.byName = make(map[string]rawLink, len(links))
	s.byNSID = make(map[int32][]rawLink)
	for _, l := range links {
		s.byName[l.Name] = l
		if l.Kind == "veth" && l.peerNSID != noNSID {
			s.byNSID[l.peerNSID] = append(s.byNSID[l.peerNSID], l)
		}
	}
	return nil
}

func addressesOf(all []rawAddr, ifindex int) (out []netip.Prefix) {
	for _, a := range all {
		if a.ifindex == ifindex {
			out = append(out, a.prefix)
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return
}

// moved reports whether something else is now at a service's path. An inode that
// was used again escapes it, but then the old namespace's links have gone.
func (s *scanner) moved() bool {
	for path, was := range s.paths {
		if now, _ := nsKeyAt(path); now != was {
			return true
		}
	}
	return false
}

// interfaces are all links of the node, by name.
func (s *scanner) interfaces() map[string]Link {
	all := make(map[string]Link, len(s.byName))
	for name, l := range s.byName {
		l.Addresses, l.IPsec = addressesOf(s.addrs, l.Ifindex), s.ipsec
		all[name] = l.Link
	}
	return all
}

// resolve finds a service in the last dump.
func (s *scanner) resolve(spec v1alpha1.ServiceSpec) (State, error) {
	if spec.Interface != "" {
		return s.resolveInterface(spec.Interface)
	}
	nsid, err := s.locate(spec)
	if err != nil {
		return State{}, err
	}
	outer := s.byNSID[nsid]
	if len(outer) == 0 {
		return State{}, nil
	}
	in, err := s.namespaceContents(nsid)
	if errors.Is(err, errVanished) {
		return State{}, nil
	}
	if err != nil {
		return State{}, err
	}
	var state State
	for _, l := range outer {
		state.Links = append(state.Links, in.complete(l))
	}
	state.Addresses = in.addresses(func(rawAddr) bool { return true })
	return state, nil
}

// resolveAlone finds a service by the links inside its namespace, each of which names its other end. It needs no dump
// of the node's links, which are many, and of which a dump is repeated while others create links. known is false if
// that does not find it.
func (s *scanner) resolveAlone(spec v1alpha1.ServiceSpec) (state State, known bool, err error) {
	if spec.Interface != "" {
		return State{}, false, nil
	}
	nsid, err := s.locate(spec)
	if err != nil || nsid == noNSID { // no id: none of its links was dumped yet
		return State{}, err != nil, err
	}
	in, err := s.enter(nsid)
	if err != nil {
		return State{}, !errors.Is(err, errVanished), err
	}
	for _, inner := range in.links {
		if inner.Kind != "veth" {
			continue
		}
		outer, err := s.conn.link(inner.peerIndex)
		if errors.Is(err, unix.ENODEV) || err == nil && !outer.hasPeer(inner, nsid) {
			continue // the other end is in a third namespace
		}
		if err != nil {
			return State{}, false, err
		}
		state.Links = append(state.Links, in.complete(outer))
	}
	if len(state.Links) == 0 {
		return State{}, true, nil
	}
	slices.SortFunc(state.Links, func(a, b Link) int { return a.Ifindex - b.Ifindex })
	state.Addresses = in.addresses(func(rawAddr) bool { return true })
	return state, true, nil
}

// hasPeer reports whether the peer of this link of the node is inner.
func (l rawLink) hasPeer(inner rawLink, nsid int32) bool {
	return l.Kind == "veth" && l.peerNSID == nsid && l.peerIndex == inner.Ifindex
}

func (s *scanner) locate(spec v1alpha1.ServiceSpec) (int32, error) {
	if spec.Netns != "" {
		return s.nsidAt(spec.Netns)
	}
	return s.nsidOfProcess(spec.PID)
}

// resolveInterface takes any kind of link; only behind a veth can it look.
func (s *scanner) resolveInterface(name string) (State, error) {
	l, ok := s.byName[name]
	if !ok {
		return State{}, fmt.Errorf("%s: %w", name, ErrInterfaceGone)
	}
	if l.Kind != "veth" || l.peerNSID == noNSID {
		l.IPsec = s.ipsec
		return State{Links: []Link{l.Link}}, nil
	}
	in, err := s.namespaceContents(l.peerNSID)
	if errors.Is(err, errVanished) {
		return State{}, fmt.Errorf("%s: %w", name, ErrInterfaceGone)
	}
	if err != nil {
		return State{}, err
	}
	return State{
		Links:     []Link{in.complete(l)},
		Addresses: in.addresses(func(a rawAddr) bool { return a.ifindex == l.peerIndex }),
	}, nil
}

// outer are the ifindexes of the host-side links of a namespace.
func (s *scanner) outer(nsid int32) (all []int) {
	for _, l := range s.byNSID[nsid] {
		all = append(all, l.Ifindex)
	}
	return all
}

// known returns the id of the namespace at a path, if the file there and the links are those of the scan before.
func (s *scanner) known(path string, at nsKey) (int32, bool) {
	was, ok := s.before[path]
	if !ok || was.nsKey != at || !slices.Equal(was.outer, s.outer(was.nsid)) {
		return noNSID, false
	}
	s.located[path] = was
	return was.nsid, true
}

// remember keeps the namespace at a path if it has links.
func (s *scanner) remember(path string, at nsKey, nsid int32) {
	if outer := s.outer(nsid); len(outer) > 0 {
		s.located[path] = located{at, nsid, outer}
	}
}

// isFull reports whether the next periodic scan trusts nothing: each one, unless the events of namespaces come.
func (s *scanner) isFull(events bool) bool {
	s.periodic++
	return !events || s.periodic%fullEvery == 0
}

// invalidate discards what scans reuse from earlier ones.
func (s *scanner) invalidate() {
	clear(s.inside)
	clear(s.located)
}

// namespaceContents answers what is inside a peer namespace, from memory if the host-side
// links are those of last time.
func (s *scanner) namespaceContents(nsid int32) (inside, error) {
	outer := s.outer(nsid)
	if known, ok := s.inside[nsid]; ok && slices.Equal(known.outer, outer) {
		return known, nil
	}
	delete(s.inside, nsid)
	in, err := s.enter(nsid)
	if err != nil {
		return inside{}, err
	}
	in.outer = outer
	s.inside[nsid] = in
	return in, nil
}

// enter reads what is inside a peer namespace.
func (s *scanner) enter(nsid int32) (inside, error) {
	links, err := s.conn.links(nsid)
	if err != nil {
		return inside{}, peerError(nsid, err)
	}
	addrs, err := s.conn.addresses(nsid)
	if err != nil {
		return inside{}, peerError(nsid, err)
	}
	in := inside{links: make(map[int]rawLink, len(links)), addrs: addrs}
	for _, l := range links {
		in.links[l.Ifindex] = l
	}
	return in, nil
}

// errVanished: the namespace ended after the node's links were dumped.
var errVanished = errors.New("the namespace was just removed")

// peerError: the kernel answers EINVAL for an id that no namespace has.
func peerError(nsid int32, err error) error {
	if errors.Is(err, unix.EINVAL) {
		return errVanished
	}
	return fmt.Errorf("namespace with id %d: %w", nsid, err)
}

// forget drops what is known of namespaces that have no host-side link any more.
func (s *scanner) forget() {
	for nsid := range s.inside {
		if len(s.byNSID[nsid]) == 0 {
			delete(s.inside, nsid)
		}
	}
}

// complete adds what is known of a link's other end, if that end points back:
// between the two dumps the pair may have been replaced.
func (in inside) complete(outer rawLink) Link {
	if peer := in.links[outer.peerIndex]; peer.peerIndex == outer.Ifindex {
		outer.Peer, outer.PeerIndex, outer.PeerMAC, outer.PeerMTU = peer.Name, peer.Ifindex, peer.MAC, peer.MTU
		outer.PeerAddresses = in.addresses(func(a rawAddr) bool { return a.ifindex == peer.Ifindex })
		outer.PeerLinkLocal = in.linkLocal(peer.Ifindex)
	}
	return outer.Link
}

// linkLocal are the link-local addresses of an interface.
func (in inside) linkLocal(ifindex int) []netip.Prefix {
	var found []netip.Prefix
	for _, a := range in.addrs {
		if a.ifindex == ifindex && a.prefix.Addr().IsLinkLocalUnicast() {
			found = append(found, a.prefix)
		}
	}
	slices.SortFunc(found, netip.Prefix.Compare)
	return slices.Compact(found)
}

func (in inside) addresses(want func(rawAddr) bool) []netip.Prefix {
	var found []netip.Prefix
	for _, a := range in.addrs {
		ip := a.prefix.Addr()
		if want(a) && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() {
			found = append(found, a.prefix)
		}
	}
	slices.SortFunc(found, netip.Prefix.Compare)
	return slices.Compact(found)
}
