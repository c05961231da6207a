// SPDX-License-Identifier: Apache-2.0

package sets

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sort"

	"github.com/kerb-edge/kerb/internal/service"
)

// maxOwnAddresses is how many addresses of one service count as its own, as in the firewall's anti-spoofing: a service
// that gives itself more cannot fill the maps that all sets share.
const maxOwnAddresses = 32

// ownAddresses are the addresses of services as sets have them, and what was left out. A service may give its network
// namespace any addresses. So those count that are on the interfaces by which it is attached, and where two services
// have the same one, it is that of the one whose interface is older.
func ownAddresses(all map[string]service.State) (own map[string][]netip.Prefix, leftOut []string) {
	type end struct {
		service string
		link    service.Link
	}
	var ends []end
	for name, s := range all {
		for _, l := range s.Links {
			if !l.Left {
				ends = append(ends, end{name, l})
			}
		}
	}
	sort.Slice(ends, func(i, j int) bool {
		x, y := ends[i], ends[j]
		return cmp.Or(cmp.Compare(x.link.Ifindex, y.link.Ifindex), cmp.Compare(x.service, y.service)) < 0
	})
	own = map[string][]netip.Prefix{}
	holders, tooMany, taken := map[netip.Addr]end{}, map[string]int{}, map[string]string{}
	for _, e := range ends {
		for _, prefix := range e.link.PeerAddresses {
			a := prefix.Addr().Unmap()
			p := netip.PrefixFrom(a, a.BitLen())
			holder, held := holders[a]
			switch {
			case slices.Contains(own[e.service], p):
			case held && holder.link.Ifindex != e.link.Ifindex: // one interface can be that of two services
				taken[e.service] = fmt.Sprintf("%v is an address of service %s, whose interface is older", a, holder.service)
			case len(own[e.service]) == maxOwnAddresses:
				tooMany[e.service]++
			default:
				holders[a], own[e.service] = e, append(own[e.service], p)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if reason, ok := taken[name]; ok {
			leftOut = append(leftOut, fmt.Sprintf("service %s: %s", name, reason))
		}
		if n := tooMany[name]; n > 0 {
			leftOut = append(leftOut, fmt.Sprintf("service %s: has %d addresses more than the %d that count", name, n,
				maxOwnAddresses))
		}
	}
	return own, leftOut
}
