// SPDX-License-Identifier: Apache-2.0

package firewall

import "github.com/kerb-edge/kerb/internal/lab/classbench"

// layers groups rules so that those of a layer do not overlap, and rules that overlap are in layers in their order: the
// first layer with a match has the first rule that matches. It is how ordered rules become sets, one lookup each.
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
