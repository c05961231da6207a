// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/kerbabi"
)

// On kernels where a packet may preempt another one on the same CPU, the later one is dropped instead of being
// translated by the other's session. Each packet releases the scratch space.
func TestWorkSpaceInUse(t *testing.T) {
	k := loadProxy(t, map[string]any{"kerb_preemptible": true})
	w := newWorldOn(k, true)
	users := make([]uint32, ebpf.MustPossibleCPU())
	occupy := func(others uint32) {
		t.Helper()
		for i := range users {
			users[i] = others
		}
		k.put("kerb_users", uint32(0), users)
	}
	syn, data := tcp(w.client, 40000, w.farVIP, 80, tcpSYN), udp(w.client, 40001, w.farVIP, 80)
	for _, p := range []packet{syn, syn, data, data} { // new sessions, and known ones by the fast path
		translated := p
		translated.dst = addr(w.far)
		w.want(w.out(p.bytes()), tcNext, translated.bytes())
		if err := k.maps["kerb_users"].Lookup(uint32(0), &users); err != nil {
			t.Fatal(err)
		}
		for cpu, n := range users {
			if n != 0 {
				t.Errorf("CPU %d: %d packets are in the work space", cpu, n)
			}
		}
		occupy(1)
		w.want(w.out(p.bytes()), tcShot, nil)
		occupy(0)
	}
	if n := w.drops(kerbabi.DropNoMemory); n != 4 {
		t.Errorf("%d packets dropped, want 4", n)
	}
}
