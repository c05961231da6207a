// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"errors"
	"net/netip"
	"sort"
	"strconv"
	"strings"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// translation converts replies to virtual services.
type translation struct {
	ranges []netip.Prefix      // only addresses in these become virtual addresses
	own    map[netip.Addr]bool // addresses of this node
}

// maxAddresses and maxInstances are the limits in the schema of a VirtualService.
const maxAddresses = 64

// spec translates a reply. It omits unusable parts: a partial service is better than none.
func (t translation) spec(r tableResult) v1.VirtualServiceSpec {
	var s v1.VirtualServiceSpec
	seen := map[netip.Addr]bool{}
	sort.SliceStable(r.Instances, func(i, j int) bool { return *r.Instances[i].Number < *r.Instances[j].Number })
	for _, i := range r.Instances {
		name := strconv.Itoa(*i.Number)
		s.Instances = append(s.Instances, v1.VirtualInstance{Name: name, Addresses: t.instanceAddresses(i),
			Node: t.node(i.Host), NodePort: t.nodePort(i), Weight: 1})
		for _, ip := range i.Virtual {
			for _, text := range []string{ip.Address, ip.Address6} {
				t.addAddress(&s, seen, text, ip.Type, name)
			}
		}
	}
	return s
}

// nodePort returns the port of the tunnel on an instance's node; 0 if it is unknown, or the instance is here.
func (t translation) nodePort(i tableEntry) int {
	l, err := i.locate("")
	if err != nil || t.node(i.Host) == "" {
		return 0
	}
	port, _ := strconv.Atoi(l.port) // 0 without a port
	return port
}

func (t translation) instanceAddresses(i tableEntry) []string {
	var out []string
	for n, text := range []string{i.Address, i.Address6} {
		if a, err := parseUnicast(text); err == nil && a.Is4() == (n == 0) && !t.virtual(a) {
			out = append(out, a.String())
		}
	}
	return out
}

// node returns the address of an instance's node, empty for this node.
func (t translation) node(host string) string {
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	a = a.Unmap()
	if err != nil || t.own[a] {
		return ""
	}
	if _, err := parseUnicast(a.String()); err != nil { // a tunnel must not send to a multicast or unspecified address
		return ""
	}
	return a.String()
}

// addAddress adds an address, up to the maximum of a service, and one of each family for each instance: more would not
// fit an update of control planes.
func (t translation) addAddress(s *v1.VirtualServiceSpec, seen map[netip.Addr]bool, text, kind,
	instance string) {
	a, err := parseUnicast(text)
	if err != nil || !t.virtual(a) || seen[a] || len(s.Addresses) >= maxAddresses+2*len(s.Instances) {
		return
	}
	seen[a] = true
	v := v1.VirtualAddress{Address: a.String()}
	switch strings.ToLower(kind) {
	case "instance_ip":
		v.Instance = instance
	case "closest":
		v.Policy = v1.PolicyClosest
	default:
		v.Policy = v1.PolicyRoundRobin
	}
	s.Addresses = append(s.Addresses, v)
}

// parseUnicast parses an address that other hosts can send packets to.
func parseUnicast(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	switch {
	case err != nil:
	case a.Is4In6(), a.Zone() != "", a.IsUnspecified(), a.IsMulticast(), a.IsLoopback(), a.IsLinkLocalUnicast(),
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		err = errors.New("not an address that a packet from elsewhere can be sent to")
	}
	return a, err
}

func (t translation) virtual(a netip.Addr) bool {
	return inNetworks(t.ranges, a)
}
