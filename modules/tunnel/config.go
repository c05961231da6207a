// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kerb-edge/kerb/sdk"
)

// Modes, with their numbers in the data plane.
const (
	modeKerb     = "kerb"
	modeOakestra = "oakestra"
	modeDevice   = "device"
)

var modes = map[string]int{modeKerb: 0, modeOakestra: 1, modeDevice: 2}

// Ports by mode.
const (
	Port         = 7187
	PortOakestra = 50103
)

// config is the module's config as kerb.yaml describes it.
type config struct {
	Mode           string       `json:"mode"`
	Port           uint16       `json:"port"`
	Network        uint16       `json:"network"`
	LocalAddresses []string     `json:"localAddresses"`
	MTU            int          `json:"mtu"`
	Nodes          []nodeConfig `json:"nodes"`
	Keys           []keyConfig  `json:"keys"`

	local   []netip.Addr
	peers   []peer
	cluster []secretKey
}

type nodeConfig struct {
	Address string      `json:"address"`
	Subnets []string    `json:"subnets"`
	Keys    []keyConfig `json:"keys"`
}

type keyConfig struct {
	ID  int    `json:"id"`
	Key secret `json:"key"`
	MAC int    `json:"mac"` // 0 is macVersion
}

// secret is never printed.
type secret string

func (secret) String() string   { return "(secret)" }
func (secret) GoString() string { return "(secret)" }

// peer is a node of the configuration, this one perhaps included.
type peer struct {
	addr    netip.Addr
	subnets []netip.Prefix
	keys    []secretKey // that only this node and that one have
}

func parseConfig(raw json.RawMessage) (*config, error) {
	return sdk.DecodeConfig(raw, &config{Mode: modeKerb}, (*config).checkMode,
		(*config).parseLocal, (*config).parseNodes, (*config).checkNodes, (*config).parseKeys)
}

var wrong = sdk.ConfigErrorf

// checkMode also completes the port, whose default depends on the mode.
func (c *config) checkMode() error {
	if c.Port == 0 {
		c.Port = Port
		if c.Mode == modeOakestra {
			c.Port = PortOakestra
		}
	}
	if _, ok := modes[c.Mode]; !ok {
		return wrong("mode", "%q is not one of kerb, oakestra and device", c.Mode)
	}
	if c.Mode != modeKerb &&
		(len(c.Keys) > 0 || slices.ContainsFunc(c.Nodes, func(n nodeConfig) bool { return len(n.Keys) > 0 })) {
		return wrong("keys", "only mode kerb has a header that a MAC fits into")
	}
	if c.Mode == modeOakestra && c.Network != 0 {
		return wrong("network", "mode oakestra has no header field for it")
	}
	if c.MTU != 0 && (c.MTU < 1280 || c.MTU > 65535) {
		return wrong("mtu", "%d is not between 1280 and 65535", c.MTU)
	}
	return nil
}

func parseAddress(field, text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.Zone() != "" || addr.IsUnspecified() || addr.IsMulticast() || addr.Is4In6() {
		return addr, wrong(field, "%q is not the address of a node", text)
	}
	return addr, nil
}

// parseLocal parses the node's own addresses: two are accepted only if one is IPv4 and the other IPv6.
func (c *config) parseLocal() error {
	for i, text := range c.LocalAddresses {
		addr, err := parseAddress(fmt.Sprintf("localAddresses[%d]", i), text)
		if err != nil {
			return err
		}
		if i == 1 && addr.Is4() == c.local[0].Is4() {
			return wrong("localAddresses[1]", "is of the same IP version as the first")
		}
		c.local = append(c.local, addr)
	}
	return nil
}

// parseNodes parses the peers. Addresses must be unique; mode oakestra refuses IPv6, because its peer drops IPv6
// datagrams without a UDP checksum.
func (c *config) parseNodes() error {
	seen := map[netip.Addr]bool{}
	for i, n := range c.Nodes {
		field := fmt.Sprintf("nodes[%d]", i)
		addr, err := parseAddress(field+".address", n.Address)
		if err != nil {
			return err
		}
		if seen[addr] {
			return wrong(field+".address", "%s is listed before", addr)
		}
		if c.Mode == modeOakestra && addr.Is6() {
			return wrong(field+".address", "mode oakestra goes over IPv4: its other side drops IPv6 without a UDP checksum")
		}
		seen[addr] = true
		p := peer{addr: addr}
		for j, text := range n.Subnets {
			subnet, err := parsePrefix(text)
			if err != nil {
				return wrong(fmt.Sprintf("%s.subnets[%d]", field, j), "%v", err)
			}
			p.subnets = append(p.subnets, subnet)
		}
		c.peers = append(c.peers, p)
	}
	return nil
}

func parsePrefix(text string) (netip.Prefix, error) {
	p, err := sdk.ParsePrefix(text)
	switch {
	case err != nil:
		err = fmt.Errorf("%q is neither an IP address nor a prefix such as 10.1.0.0/16", text)
	case p.Addr().Is4In6():
		err = fmt.Errorf("%q is an IPv4 address in IPv6 form; write it as IPv4", text)
	case p != p.Masked():
		err = fmt.Errorf("%q has bits beyond its length; write %s", text, p.Masked())
	}
	return p, err
}

// checkNodes refuses what would send a packet to two nodes, or the tunnel's own packets into the tunnel.
func (c *config) checkNodes() error {
	owner := map[netip.Prefix]netip.Addr{}
	for i, p := range c.peers {
		for j, subnet := range p.subnets {
			field := fmt.Sprintf("nodes[%d].subnets[%d]", i, j)
			if other, taken := owner[subnet]; taken {
				return wrong(field, "%s is also one of node %s", subnet, other)
			}
			owner[subnet] = p.addr
			for _, q := range c.peers {
				if subnet.Contains(q.addr) {
					return wrong(field, "%s contains the address of node %s, which is on the underlay", subnet, q.addr)
				}
			}
		}
	}
	return nil
}

// parseKeys reads all keys. Every node needs some if one has: a packet without MAC is not accepted then.
func (c *config) parseKeys() (err error) {
	if c.cluster, err = parseKeys("keys", c.Keys); err != nil {
		return err
	}
	for i, n := range c.Nodes {
		if c.peers[i].keys, err = parseKeys(fmt.Sprintf("nodes[%d].keys", i), n.Keys); err != nil {
			return err
		}
	}
	return nil
}

// keyed reports whether packets need a MAC.
func (c *config) keyed() bool {
	return len(c.cluster) > 0 || slices.ContainsFunc(c.peers, func(p peer) bool { return len(p.keys) > 0 })
}

// overhead is what the tunnel adds to a packet to a node, in bytes.
func (c *config) overhead(to netip.Addr) int {
	const ip4, ip6, udp, header, mac = 20, 40, 8, 4, 8
	n := ip4 + udp
	if to.Is6() {
		n = ip6 + udp
	}
	switch {
	case c.Mode == modeDevice:
		return 0 // the device's MTU knows
	case c.Mode == modeOakestra:
		return n
	case c.keyed():
		n += mac
	}
	return n + header
}
