// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/kerb-edge/kerb/sdk"
)

var protocols = map[uint8]string{1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6", 132: "sctp"}

// String names a source as routes do: a node or a peer by its address, a flow as protocol, remote and local end.
func (s source) String() string {
	addr, local := netip.AddrFrom16(s.Addr).Unmap(), netip.AddrFrom16(s.Local)
	if local == netip.IPv6Unspecified() {
		return addr.String()
	}
	protocol, ok := protocols[s.Proto]
	if !ok {
		protocol = strconv.Itoa(int(s.Proto))
	}
	return fmt.Sprintf("%s-%v-%v", protocol, netip.AddrPortFrom(addr, binary.BigEndian.Uint16(s.Port[:])),
		netip.AddrPortFrom(local.Unmap(), binary.BigEndian.Uint16(s.LocalPort[:])))
}

// Location is where packets of a source were received.
type Location struct {
	Source    string `json:"source"`
	Service   string `json:"service,omitempty"`
	Interface string `json:"interface"`
	PAN       string `json:"pan,omitempty"` // of a node of an RPL network
}

// places names interfaces.
type places map[uint32]sdk.Attachment

func (w *running) places() places { return w.live.ByIfindex() }

func (p places) of(s source) Location {
	at := p[s.Ifindex]
	out := Location{Source: s.String(), Service: at.Service, Interface: at.Interface}
	if out.Interface == "" {
		out.Interface = strconv.Itoa(int(s.Ifindex))
	}
	if int(s.Kind) == index(extractors, "rpl") {
		out.PAN = fmt.Sprintf("0x%04x", s.Pan)
	}
	return out
}
