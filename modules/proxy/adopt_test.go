// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// No address serves instances of another service after any number of restarts of the control plane: services without
// instances do not keep their previous run of slots, which another service may use.
func TestRunsAfterRestarts(t *testing.T) {
	p, rng := newTestControl(t, ""), rand.New(rand.NewPCG(1, 2))
	services, want := map[int]sdk.VirtualService{}, map[int][]string{}
	for step := range 400 {
		p.now = p.now.Add(restFor)
		n := rng.IntN(6)
		vs := sdk.VirtualService{Name: fmt.Sprint("s", n), Spec: v1alpha1.VirtualServiceSpec{
			Addresses: []v1alpha1.VirtualAddress{{Address: fmt.Sprintf("10.30.0.%d", n)}}}}
		names := []string{}
		for i := range rng.IntN(4) {
			names = append(names, fmt.Sprintf("s%d-%d", n, i))
			vs.Spec.Instances = append(vs.Spec.Instances,
				v1alpha1.VirtualInstance{Name: names[i], Addresses: []string{fmt.Sprintf("10.18.%d.%d", n, i)}})
		}
		services[n], want[n] = vs, names
		p.put(vs)
		if step%4 == 0 {
			p.restart("")
			var all []sdk.VirtualService
			for _, vs := range services {
				all = append(all, vs)
			}
			p.all(all...)
		}
		for n, names := range want {
			if got := p.served(fmt.Sprintf("10.30.0.%d", n)); !slices.Equal(got, names) {
				t.Fatalf("step %d: s%d serves %v, want %v", step, n, got, names)
			}
		}
	}
}
