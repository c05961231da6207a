// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kerb-edge/kerb/sdk"
)

type config struct {
	ToIP     string    `json:"to_ip"`
	ToIP6    string    `json:"to_ip6"`
	Ports    ports     `json:"ports"`
	Services uint32    `json:"services"`
	Except   []string  `json:"except"`
	Forward  []forward `json:"forward"`
}

type ports struct {
	First uint16 `json:"first"`
	Last  uint16 `json:"last"`
}

type forward struct {
	Proto  string `json:"proto"`
	Port   uint16 `json:"port"`
	ToIP   string `json:"to_ip"`
	ToPort uint16 `json:"to_port"`
}

type compiled struct {
	config
	to4, to6 netip.Addr
	except   []prefix
	forward  map[inside]inside // by outside address and port
}

const maxMappings = 262144

var protocols = map[string]uint8{"tcp": 6, "udp": 17}

func (c *compiled) count() uint32 { return uint32(c.Ports.Last) - uint32(c.Ports.First) + 1 }

// constants returns the values of the data plane's read-only variables. Addresses keep network byte order in memory;
// ports are in host byte order.
func (c *compiled) constants() map[string]any {
	out := map[string]any{"first_port": uint32(c.Ports.First), "port_count": c.count()}
	if c.to4.IsValid() {
		b := c.to4.As4()
		out["outside4"] = binary.NativeEndian.Uint32(b[:])
	}
	if c.to6.IsValid() {
		b := c.to6.As16()
		out["outside6_high"] = words(b[:8])
		out["outside6_low"] = words(b[8:])
	}
	return out
}

func words(b []byte) uint64 {
	return uint64(binary.NativeEndian.Uint32(b)) | uint64(binary.NativeEndian.Uint32(b[4:]))<<32
}

// check fills in defaults and parses the addresses. Services times ports is the number of mappings and at most
// maxMappings.
func (c *compiled) check() (err error) {
	c.Ports.First, c.Ports.Last = cmp.Or(c.Ports.First, 40000), cmp.Or(c.Ports.Last, 41023)
	c.Services = cmp.Or(c.Services, 32)
	if c.to4, err = address("to_ip", c.ToIP, netip.Addr.Is4); err != nil {
		return err
	}
	if c.to6, err = address("to_ip6", c.ToIP6, netip.Addr.Is6); err != nil {
		return err
	}
	switch {
	case !c.to4.IsValid() && !c.to6.IsValid():
		return sdk.ConfigErrorf("to_ip", "set to_ip, to_ip6 or both: without them nothing is translated")
	case c.Ports.First > c.Ports.Last:
		return sdk.ConfigErrorf("ports.first", "is above ports.last (%d)", c.Ports.Last)
	case c.Services*c.count() > maxMappings:
		return sdk.ConfigErrorf("services", "%d services with %d ports each are more than %d mappings: reduce one of them",
			c.Services, c.count(), maxMappings)
	}
	for i, text := range c.Except {
		p, err := parsePrefix(text)
		if err != nil {
			return sdk.ConfigErrorf(fmt.Sprintf("except[%d]", i), "%v", err)
		}
		c.except = append(c.except, p)
	}
	return c.checkForwards()
}

// address parses the address of a field, which may be empty.
func address(field, text string, family func(netip.Addr) bool) (netip.Addr, error) {
	if text == "" {
		return netip.Addr{}, nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil || !family(a) || a.Is4In6() || a.Zone() != "" || !(a.IsGlobalUnicast()) {
		return netip.Addr{}, sdk.ConfigErrorf(field, "%q is not a unicast address of its family", text)
	}
	return a, nil
}

// parsePrefix accepts an address or a prefix and returns it in IPv6 form, IPv4 mapped, as the key of the longest-prefix
// map needs it.
func parsePrefix(text string) (prefix, error) {
	p, err := sdk.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return prefix{}, fmt.Errorf("%q is not a prefix such as 10.30.0.0/16", text)
	}
	p = sdk.MappedPrefix(p).Masked()
	return prefix{uint32(p.Bits()), p.Addr().As16()}, nil
}

// checkForwards checks that neither an outside port nor a target is used by two forwards: replies could not be
// translated back otherwise.
func (c *compiled) checkForwards() error {
	c.forward = map[inside]inside{}
	var targets []inside
	for i, f := range c.config.Forward {
		out, in, err := c.forwardOf(f)
		if err != nil {
			return sdk.PrefixField(fmt.Sprintf("forward[%d]", i), err)
		}
		if _, twice := c.forward[out]; twice {
			return sdk.ConfigErrorf(fmt.Sprintf("forward[%d].port", i), "is forwarded twice")
		}
		if slices.Contains(targets, in) {
			return sdk.ConfigErrorf(fmt.Sprintf("forward[%d].to_port", i), "is the target of two ports")
		}
		c.forward[out], targets = in, append(targets, in)
	}
	return nil
}

// forwardOf returns the outside endpoint and the service's endpoint, ports in network byte order. A port in the range
// for mappings is refused, because a mapping could take it.
func (c *compiled) forwardOf(f forward) (out, in inside, err error) {
	proto, known := protocols[cmp.Or(f.Proto, "tcp")]
	to, err := address("to_ip", f.ToIP, netip.Addr.IsValid)
	own := c.to4
	if to.Is6() {
		own = c.to6
	}
	switch {
	case err != nil:
		return out, in, err
	case !known:
		return out, in, sdk.ConfigErrorf("proto", "want tcp or udp")
	case !to.IsValid():
		return out, in, sdk.ConfigErrorf("to_ip", "is missing: the address of the service")
	case !own.IsValid():
		return out, in, sdk.ConfigErrorf("to_ip", "the module has no outside address of the family of %s", to)
	case f.Port == 0 || f.ToPort == 0:
		return out, in, sdk.ConfigErrorf("port", "port and to_port are 1 to 65535")
	case f.Port >= c.Ports.First && f.Port <= c.Ports.Last:
		return out, in, sdk.ConfigErrorf("port", "is one of ports (%d to %d)", c.Ports.First, c.Ports.Last)
	}
	family := uint8(4)
	if to.Is6() {
		family = 6
	}
	out = inside{Proto: proto, Family: family, Port: bigEndian(f.Port), Addr: own.As16()}
	return out, inside{Proto: proto, Family: family, Port: bigEndian(f.ToPort), Addr: to.As16()}, nil
}

func bigEndian(port uint16) (b [2]byte) {
	binary.BigEndian.PutUint16(b[:], port)
	return b
}
