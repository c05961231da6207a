// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
)

// Port is the service's TCP port that the last rule of every set opens.
const Port = 5201

// Rule lets packets into the service; what no rule lets in is dropped, and
// what the service sends passes. No packet matches two rules.
type Rule struct {
	Source            netip.Prefix // IPv4
	Protocol          string       // tcp or udp
	PortLow, PortHigh uint16       // of the service, both included
}

// seed makes the same rules on every machine.
const seed = 0x6b657262

// blockBits is the size of the network in which each rule has its sources;
// the blocks begin at 16.0.0.0, far from any lab address.
const (
	blockBits  = 20
	firstBlock = 16 << 24
	blocks     = 1 << 16
)

// Rules makes n rules of a kind, the last of which lets the client reach Port:
// exact has one address and port each, prefix networks of /20 to /30, range
// networks and port ranges.
func Rules(kind string, n int, client netip.Addr) ([]Rule, error) {
	if kind != "exact" && kind != "prefix" && kind != "range" {
		return nil, fmt.Errorf("no kind of rules is called %q", kind)
	}
	if n < 1 || n > blocks {
		return nil, fmt.Errorf("%d rules: 1 to %d can be made", n, blocks)
	}
	random := rand.New(rand.NewPCG(seed, uint64(n)))
	order := random.Perm(blocks)
	rules := make([]Rule, 0, n)
	for _, block := range order[:n-1] {
		rules = append(rules, randomRule(kind, random, uint32(firstBlock+block<<(32-blockBits))))
	}
	return append(rules, clientRule(kind, client)), nil
}

func randomRule(kind string, random *rand.Rand, base uint32) Rule {
	bits := 32
	if kind != "exact" {
		bits = blockBits + random.IntN(11)
	}
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], base+random.Uint32N(1<<(32-blockBits)))
	port := uint16(1 + random.IntN(60000))
	rule := Rule{
		Source:   netip.PrefixFrom(netip.AddrFrom4(addr), bits).Masked(),
		Protocol: []string{"tcp", "udp"}[random.IntN(2)],
		PortLow:  port, PortHigh: port,
	}
	if kind == "range" {
		rule.PortHigh += uint16(1 + random.IntN(1000))
	}
	return rule
}

func clientRule(kind string, client netip.Addr) Rule {
	rule := Rule{Source: netip.PrefixFrom(client, 32), Protocol: "tcp", PortLow: Port, PortHigh: Port}
	if kind != "exact" {
		rule.Source = netip.PrefixFrom(client, 24).Masked()
	}
	if kind == "range" {
		rule.PortLow, rule.PortHigh = 5000, 5999
	}
	return rule
}
