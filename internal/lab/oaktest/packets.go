// SPDX-License-Identifier: Apache-2.0

package oaktest

import (
	"net/netip"
	"slices"
	"sync"

	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

// proxyCache is what NetManager knows of connections. It forgets none, and does not distinguish TCP from UDP.
type proxyCache struct {
	mu  sync.Mutex
	all map[cacheKey]conversion
}

// cacheKey is all by which an answer is recognised: two connections of one service with the same ports are mixed up.
type cacheKey struct {
	service      netip.Addr // namespace address on this worker
	sport, dport uint16     // of what it sends
}

type conversion struct{ asked, peer, instance netip.Addr }

func newProxyCache() *proxyCache { return &proxyCache{all: map[cacheKey]conversion{}} }

// tables is what the packet side needs of the tables.
type tables interface {
	// find returns the instances behind a virtual address. It may have to query, while all other packets wait.
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

// incoming translates an answer. Everything else is delivered as it is, with the checksums that it has.
func (c *proxyCache) incoming(p traffic.Packet) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if conv, exists := c.all[cacheKey{p.Dst, p.DstPort, p.SrcPort}]; exists {
		return p.Between(conv.asked, p.Dst)
	}
	return p.Raw
}

// virtualRanges are those of tuncfg.json, with an IPv6 range in which the root's addresses are.
var virtualRanges = [2]netip.Prefix{netip.MustParsePrefix("10.30.0.0/16"), netip.MustParsePrefix("fdff::/16")}
