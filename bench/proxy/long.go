// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/path"
	"github.com/kerb-edge/kerb/bench/tunnel"
)

// The places of long loads.
const (
	onOneNode  = "one-node"
	onTwoNodes = "two-nodes"
)

var longLoads = slices.Concat(path.LongLoads(onOneNode), path.LongLoads(onTwoNodes))

// longConfigs are the configs of the published work, and kube-proxy's.
var longConfigs = []string{"direct", "kerb", "nftables", "tun-go"}

// runLong measures rising rates, or CPU and memory over time, to virtual IPv4 addresses.
func runLong(ctx context.Context, r *bench.Run, load string) error {
	r.Note("sweep: 1400 bytes of UDP payload per packet; one-way latency is from the sender's system call to the " +
		"receiver's, by the same clock; packets dropped because the receiver's socket buffer is full do not count as lost")
	r.Note("timeline: CPU and memory are totals of client, server, user-space proxies, Kerb's agents, control planes " +
		"and maps; the generator of the sweep runs in the process of the benchmark")
	if strings.HasSuffix(load, onTwoNodes) {
		return tunnel.RunLong(ctx, r, load)
	}
	var ways []path.Config
	for _, c := range configs {
		if !slices.Contains(longConfigs, c.name) {
			continue
		}
		ways = append(ways, path.Config{Name: c.name, Open: func() (*path.Path, io.Closer, error) {
			g, err := open(c, virtual["same-node/ipv4"])
			if err != nil {
				return nil, nil, err
			}
			return g.path, g, nil
		}})
	}
	return path.RunLong(ctx, r, load, ways)
}
