// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// On kernels where a packet may preempt another one on the same CPU, the later one is dropped instead of being decided
// with the other's data. Each packet releases the scratch space.
func TestWorkSpaceInUse(t *testing.T) {
	sdktest.NeedRoot(t)
	mod := module(t, compileConfig(t, `{"rules": [{"action": "allow", "direction": "egress"}]}`))
	mod.Settings.Constants["kerb_preemptible"] = true
	l, err := dataplane.Load(chain.OnTCIngress, chain.Egress, mod)
	sdktest.Explain(t, err)
	defer l.Close()
	k := &kernel{t: t, loaded: l, egress: l.Program, maps: l.Maps[mod.Name]}
	packet := frame{Packet: udp(svc4, 1, far4, 53)}.bytes()
	for i, passes := range []bool{true, true, false, true} {
		k.occupy(!passes)
		if k.pass(packet, false) != passes {
			t.Errorf("packet %d: passes %v", i, !passes)
		}
	}
	if n := k.drops(int(kerbabi.DropNoMemory)); n != 1 {
		t.Errorf("%d packets dropped for memory", n)
	}
}

// occupy marks the scratch space of all CPUs as in use by another packet, or as free.
func (k *kernel) occupy(others bool) {
	k.t.Helper()
	users := make([]uint32, ebpf.MustPossibleCPU())
	if err := k.maps["kerb_users"].Lookup(uint32(0), &users); err != nil || slices.Max(users) > 1 {
		k.t.Errorf("users of the work space: %v %v", users, err)
	}
	for i := range users {
		users[i] = map[bool]uint32{true: 1}[others]
	}
	if err := k.maps["kerb_users"].Put(uint32(0), users); err != nil {
		k.t.Fatal(err)
	}
}
