// SPDX-License-Identifier: Apache-2.0

package oaktest

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

// proxyCache is NetManager's connection table. Entries do not expire, and do not distinguish TCP from UDP.
type proxyCache struct {
	mu  sync.Mutex
	all map[cacheKey]conversion
}

// cacheKey identifies the connection of a reply. It is ambiguous: two connections of one service with the same ports
// share an entry.
type cacheKey struct {
	service      netip.Addr // namespace address on this worker
	sport, dport uint16     // of its packets
}

type conversion struct{ asked, peer, instance netip.Addr }

func newProxyCache() *proxyCache { return &proxyCache{all: map[cacheKey]conversion{}} }

// tables are the lookups that packet translation needs.
type tables interface {
	// find returns the instances of a virtual address. It may have to query, while all other packets wait.
	find(virtual netip.Addr) []entry
	// own returns the instance address of a service by its namespace address.
	own(namespace netip.Addr) (netip.Addr, bool)
}

// outgoing translates a packet of a service, and returns the entry that it is for.
func (c *proxyCache) outgoing(p traffic.Packet, t tables, pick func(n int) int) (raw []byte, to entry, ok bool) {
	if !virtualRanges[0].Contains(p.Dst) && !virtualRanges[1].Contains(p.Dst) {
		return nil, to, false
	}
	all := t.find(p.Dst)
	instance, known := t.own(p.Src)
	if len(all) == 0 || !known {
		return nil, to, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	key := cacheKey{p.Src, p.SrcPort, p.DstPort}
	conv, exists := c.all[key]
	i := slices.IndexFunc(all, func(e entry) bool { return e.namespace(p.Dst) == conv.peer })
	if !exists || conv.asked != p.Dst || conv.instance != instance || i < 0 {
		i = pick(len(all))
		c.all[key] = conversion{p.Dst, all[i].namespace(p.Dst), instance}
	}
	return p.Between(instance, all[i].namespace(p.Dst)), all[i], true
}

// incoming translates a reply. Any other packet is delivered unchanged, with its checksums.
func (c *proxyCache) incoming(p traffic.Packet) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conv, exists := c.all[cacheKey{p.Dst, p.DstPort, p.SrcPort}]; exists {
		return p.Between(conv.asked, p.Dst)
	}
	return p.Raw
}

// virtualRanges are those of tuncfg.json, with an IPv6 range that contains the root's addresses.
var virtualRanges = [2]netip.Prefix{netip.MustParsePrefix("10.30.0.0/16"), netip.MustParsePrefix("fdff::/16")}
