// SPDX-License-Identifier: Apache-2.0

package status

import (
	"cmp"
	"maps"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/promtext"
)

// CountsOf are the packets of one module, by hook and direction.
func CountsOf(c dataplane.Counts, module string) (out []v1.ModuleCount) {
	for _, key := range countKeys(c) {
		if key.Module == module {
			out = append(out, count(key, c.Modules[key]))
		}
	}
	return out
}

func countKeys(c dataplane.Counts) []dataplane.CountKey {
	return slices.SortedFunc(maps.Keys(c.Modules), func(x, y dataplane.CountKey) int {
		return cmp.Or(cmp.Compare(x.Module, y.Module), cmp.Compare(x.Side, y.Side), cmp.Compare(x.Direction, y.Direction))
	})
}

// ChainCounts are those of the modules of a chain, in its order, since it was linked.
func ChainCounts(c dataplane.Counts, pinned chain.Pinned) (out []v1.ModuleCount) {
	members := pinned.Spec.Members
	for i, v := range c.Chains[pinned.ID] {
		if i < len(members) {
			out = append(out, count(dataplane.CountKey{Module: members[i].Name, Side: pinned.Spec.Side,
				Direction: pinned.Spec.Direction}, v))
		}
	}
	return out
}

func count(key dataplane.CountKey, v dataplane.Verdicts) v1.ModuleCount {
	sum := v.Sum()
	out := v1.ModuleCount{Module: key.Module, Hook: string(key.Side), Direction: string(key.Direction),
		Packets: sum.Packets, Bytes: sum.Bytes}
	for verdict, n := range v {
		if n.Packets > 0 {
			out.Verdicts = append(out.Verdicts, v1.VerdictCount{Verdict: kerbabi.Verdict(verdict).String(),
				Packets: n.Packets, Bytes: n.Bytes})
		}
	}
	return out
}

// CollectCounts adds the counts of all modules to the metrics.
func CollectCounts(c dataplane.Counts, out *promtext.Set) {
	for _, key := range countKeys(c) {
		for verdict, n := range c.Modules[key] {
			labels := []string{"module", key.Module, "hook", string(key.Side), "direction", string(key.Direction), "verdict",
				kerbabi.Verdict(verdict).String()}
			out.Counter("kerb_module_packets_total", "Packets that reached a module, by its verdict.", float64(n.Packets),
				labels...)
			out.Counter("kerb_module_bytes_total", "Bytes of packets that reached a module, by its verdict.",
				float64(n.Bytes), labels...)
		}
	}
}
