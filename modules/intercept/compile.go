// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// identity is what the counters of a class are kept by, in this configuration and the next.
func (c *class) identity() uint64 {
	h := fnv.New64a()
	h.Write([]byte(c.Name))
	return h.Sum64() | 1
}

func (c *class) directions() uint8 {
	switch c.Direction {
	case "ingress":
		return isIngress
	case "egress":
		return isEgress
	}
	return isIngress | isEgress
}

// entry returns the class as the data plane reads it. The deadline of a fallback is in microseconds, and 0 means none.
func (c *class) entry() classEntry {
	m := &c.Match
	e := classEntry{Identity: c.identity(), Directions: c.directions(), Family: uint8(m.Family), Proto: m.Protocol.number,
		Action: uint8(slices.Index(actions[:], c.Action)), Ring: uint8(c.slot), Priority: c.Priority, MaxBytes: c.MaxBytes,
		ToPorts: uint8(len(m.Ports)), FromPorts: uint8(len(m.SourcePorts)), To: uint8(len(m.Destinations)),
		From: uint8(len(m.Sources)), Label: uint32(m.Label)}
	if m.Protocol.set {
		e.HasProto = 1
	}
	if c.Delivery != "ringbuf" {
		e.Socket = 1
	}
	if c.Fallback != nil {
		e.Fallback = uint32(time.Duration(c.Deadline).Microseconds())
	}
	if c.Forward != nil {
		e.Target = c.Forward.entry()
	}
	for i, r := range m.Ports {
		e.ToPort[i] = rangeEntry(r)
	}
	for i, r := range m.SourcePorts {
		e.FromPort[i] = rangeEntry(r)
	}
	for i, p := range m.Destinations {
		e.ToAddr[i] = p.entry()
	}
	for i, p := range m.Sources {
		e.FromAddr[i] = p.entry()
	}
	n := 0
	for _, one := range m.Payload {
		n += copy(e.Payload[n:], one.entries())
	}
	return e
}

func (p prefix) entry() (e prefixEntry) {
	copy(e.Addr[:], p.Addr().AsSlice())
	// the first bits of an IPv4 mask are those of an IPv6 one
	ones := netip.AddrFrom16([16]byte(slices.Repeat([]byte{0xff}, 16)))
	mask, _ := ones.Prefix(p.Bits())
	copy(e.Mask[:], mask.Addr().AsSlice())
	return e
}

// entries are the pieces of a condition that the data plane compares at once.
func (c condition) entries() (out []bytesEntry) {
	for at := 0; at < len(c.Bytes); at += wordBytes {
		end := min(at+wordBytes, len(c.Bytes))
		e := bytesEntry{Offset: c.Offset + uint16(at), Len: uint16(end - at)}
		for i := range end - at {
			e.Mask[i] = 0xff
			if c.Mask != nil {
				e.Mask[i] = c.Mask[at+i]
			}
			e.Bytes[i] = c.Bytes[at+i] & e.Mask[i]
		}
		out = append(out, e)
	}
	return out
}

// table returns the classes as packets meet them. Its identity is that of all values, of the pages too.
func (c *config) table() *tableEntry {
	t := &tableEntry{N: uint32(len(c.Classes))}
	for i := range t.OfRing {
		t.OfRing[i] = noRing
	}
	for i, one := range c.Classes {
		t.Classes[0][i] = one.entry()
		t.Classes[1][i] = t.Classes[0][i]
		t.Directions |= uint32(one.directions())
		if one.slot != noRing {
			t.OfRing[one.slot] = uint8(i)
			t.Rings++
		}
		t.mayMatch(one.Match.Ports)
	}
	h := fnv.New32a()
	_ = binary.Write(h, binary.NativeEndian, t) // of fixed size, and a hash takes all
	for _, one := range c.Classes {
		_ = binary.Write(h, binary.NativeEndian, [2]duration{one.Deadline, one.Watchdog})
	}
	t.Identity = h.Sum32() | 1
	for i, one := range c.Classes { // behind the identity, which stays when an interface comes or goes
		for v := range t.Classes {
			t.Classes[v][i].Target.Ifindex = atomic.LoadUint32(&one.ifindex)
		}
	}
	return t
}

// mayMatch notes the destination ports of a class.
func (t *tableEntry) mayMatch(ports []portRange) {
	if len(ports) == 0 {
		t.AnyPort = 1
	}
	for _, r := range ports {
		for port := int(r.First); port <= int(r.Last); port++ {
			t.Ports[port>>5] |= 1 << (port & 31)
		}
	}
}
