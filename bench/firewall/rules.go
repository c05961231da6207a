// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/internal/lab/classbench"
)

// Port is the service's TCP port that the last rule of every set opens.
const Port = 5201

// Rule is a rule for IPv4. Packets to the service that no rule allows are dropped; packets from the service pass.
type Rule = classbench.Rule

// seed yields the same rules on every machine.
const seed = 0x6b657262

// blockBits is the size of the block with the sources of one rule. Blocks start at 16.0.0.0, which no lab uses.
const (
	blockBits  = 20
	firstBlock = 16 << 24
	blocks     = 1 << 16
)

// Rules returns n rules of a kind. exact has one source address and port per rule, prefix networks of /20 to /30, range
// networks and port ranges, mixed a third of each. They do not overlap and all allow; the last one allows the client's
// packets to Port. set has n sources only. classbench-KIND has the rules of classbench, most of which overlap, and a
// third of which deny.
func Rules(kind string, n int, client netip.Addr) ([]Rule, error) {
	if set, ok := strings.CutPrefix(kind, "classbench-"); ok {
		return classbench.Rules(set, n, true)
	}
	if kind == "set" && n > 0 {
		return setRules(n, client), nil
	}
	if !slices.Contains([]string{"exact", "prefix", "range", "mixed"}, kind) {
		return nil, fmt.Errorf("unknown kind of rules %q", kind)
	}
	if n < 1 || n > blocks {
		return nil, fmt.Errorf("%d rules: must be 1 to %d", n, blocks)
	}
	random := rand.New(rand.NewPCG(seed, uint64(n)))
	order := random.Perm(blocks)
	rules := make([]Rule, 0, n)
	for i, block := range order[:n-1] {
		of := kind
		if kind == "mixed" {
			of = []string{"exact", "prefix", "range"}[i%3]
		}
		rules = append(rules, randomRule(of, random, uint32(firstBlock+block<<(32-blockBits))))
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
		Allow:    true,
		Src:      netip.PrefixFrom(netip.AddrFrom4(addr), bits).Masked(),
		Protocol: []int{classbench.TCP, classbench.UDP}[random.IntN(2)],
		SrcPort:  classbench.AnyPort,
		DstPort:  classbench.Ports{Low: port, High: port},
	}
	if kind == "range" {
		rule.DstPort.High += uint16(1 + random.IntN(1000))
	}
	return rule
}

func clientRule(kind string, client netip.Addr) Rule {
	rule := Rule{Allow: true, Src: netip.PrefixFrom(client, 32), Protocol: classbench.TCP, SrcPort: classbench.AnyPort,
		DstPort: classbench.Ports{Low: Port, High: Port}}
	if kind == "prefix" || kind == "range" {
		rule.Src = netip.PrefixFrom(client, 24).Masked()
	}
	if kind == "range" {
		rule.DstPort = classbench.Ports{Low: 5000, High: 5999}
	}
	return rule
}
