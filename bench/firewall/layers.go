// SPDX-License-Identifier: Apache-2.0

package firewall

import "github.com/kerb-edge/kerb/internal/lab/classbench"

// layers groups rules into layers without overlaps. Overlapping rules are in different layers in their order, so that
// the first layer with a match contains the first matching rule. Ordered rules can thus be written as sets, with one
// lookup per layer.
func layers(rules []Rule) [][]Rule {
	var out [][]Rule
	layer := make([]int, len(rules))
	for i := range rules {
		for j := range i {
			if layer[j] >= layer[i] && overlap(&rules[i], &rules[j]) {
				layer[i] = layer[j] + 1
			}
		}
		if layer[i] == len(out) {
			out = append(out, nil)
		}
		out[layer[i]] = append(out[layer[i]], rules[i])
	}
	return out
}

func overlap(a, b *Rule) bool {
	return (a.Protocol == b.Protocol || a.Protocol == classbench.Any || b.Protocol == classbench.Any) &&
		a.SrcPort.Low <= b.SrcPort.High && b.SrcPort.Low <= a.SrcPort.High &&
		a.DstPort.Low <= b.DstPort.High && b.DstPort.Low <= a.DstPort.High &&
		(!a.Src.IsValid() || !b.Src.IsValid() || a.Src.Overlaps(b.Src)) &&
		(!a.Dst.IsValid() || !b.Dst.IsValid() || a.Dst.Overlaps(b.Dst))
}
