// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"sort"
	"strconv"

	"github.com/kerb-edge/kerb/sdk"
)

var names = map[uint8]string{1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6"}

// list returns the mappings of the present interfaces, expired ones included, ordered by interface and outside port.
func (g running) list() ([]Mapping, error) {
	where := g.ByIfindex()
	all, err := sdk.ReadTable[outside, mapping](g.Maps, mapMappings)
	if err != nil {
		return nil, err
	}
	out := []Mapping{}
	for key, m := range all {
		if at, present := where[key.Ifindex]; present {
			out = append(out, Mapping{Service: at.Service, Interface: at.Interface,
				Protocol: cmp.Or(names[m.Inside.Proto], strconv.Itoa(int(m.Inside.Proto))),
				Address:  netip.AddrFrom16(m.Inside.Addr).Unmap().String(),
				Port:     binary.BigEndian.Uint16(m.Inside.Port[:]), Outside: binary.BigEndian.Uint16(key.Port[:])})
		}
	}
	sort.Slice(out, func(i, j int) bool {
		return cmp.Or(cmp.Compare(out[i].Interface, out[j].Interface), cmp.Compare(out[i].Outside, out[j].Outside)) < 0
	})
	return out, nil
}
