// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"testing"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

func TestShadows(t *testing.T) {
	w := world{modules: map[string]*deployment{}}
	for name, rank := range map[string]int{"fw": 0, "count": 0, "px": 50, "tun": 60} {
		w.modules[name] = &deployment{pkg: &pkgs.Package{Manifest: pkgs.Manifest{Rank: rank}}}
	}
	for _, c := range []struct{ chain, want []string }{
		{[]string{"count", "fw", "px", "tun"}, nil},
		{[]string{"px", "fw"}, []string{"fw"}},
		{[]string{"fw", "tun", "px", "count"}, []string{"count", "px"}},
		{[]string{"gone", "fw"}, nil},
		{[]string{"px", "gone"}, []string{"gone"}},
	} {
		place := placement{service: "web"}
		for _, name := range c.chain {
			place.chain.Members = append(place.chain.Members, chain.Member{Name: name})
		}
		points := map[chain.Point]placement{{Ifindex: 7, Side: chain.OnTCIngress}: place}
		var got []string
		for name := range w.shadows(points) {
			got = append(got, name)
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.chain, got, c.want)
		}
		if n := len(w.warnings(points)); n != len(c.want) {
			t.Errorf("%v: %d warnings", c.chain, n)
		}
	}
}
