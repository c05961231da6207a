// SPDX-License-Identifier: Apache-2.0

package classifier_test

import (
	"testing"

	"github.com/cilium/ebpf"
)

// On kernels where a packet may preempt another one on the same CPU, the later one passes and is not counted, instead
// of corrupting the other's scratch space. Each packet releases the scratch space.
func TestWorkSpaceInUse(t *testing.T) {
	onHooks(t, with(dropping, settings{"kerb_preemptible": true}), func(t *testing.T, k *kernel) {
		k.use(0, "rpl", "dis", 10)
		k.suspect(7, 100)
		occupy := func(users uint32) {
			each := make([]uint32, ebpf.MustPossibleCPU())
			for i := range each {
				each[i] = users
			}
			if err := k.maps["kerb_users"].Put(uint32(0), each); err != nil {
				t.Fatal(err)
			}
		}
		for i, want := range []verdict{dropped, dropped, passed, dropped} {
			before := k.count(countPackets)
			if want == passed {
				occupy(1)
			}
			if got := k.run(disFrame(7, byte(i))); got != want {
				t.Errorf("packet %d: %s", i, got)
			}
			if counted := k.count(countPackets) - before; (counted == 1) != (want == dropped) {
				t.Errorf("packet %d is counted %d times", i, counted)
			}
			if want == passed {
				occupy(0)
			}
		}
	})
}
