// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"

	"github.com/kerb-edge/kerb/internal/chain"
)

// A pointer into the packet ends with a call of a global function that moves the packet, on every kernel.
func TestGlobalFunctionEndsPointers(t *testing.T) {
	for _, side := range []chain.Side{chain.OnXDP, chain.OnTCIngress} {
		_, err := Load(side, chain.Egress, testModule(t, "stale", "stale", nil))
		if rejected := (*RejectedError)(nil); !errors.As(err, &rejected) {
			t.Errorf("%s: the kernel took a program that reads through an old pointer: %v", side, err)
		}
	}
}

// The same where the function writes through a dynptr, which no verifier sees of global functions.
func TestDynptrWriteEndsPointers(t *testing.T) {
	needsRoot(t)
	types, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	var fn *btf.Func
	if types.TypeByName("bpf_dynptr_from_skb", &fn) != nil {
		t.Skip("packets have no dynptrs before Linux 6.4")
	}
	module := testModule(t, "dynptr", "dynptr", nil)
	_, err = Load(chain.OnTCIngress, chain.Egress, module)
	if rejected := (*RejectedError)(nil); !errors.As(err, &rejected) {
		t.Errorf("the kernel took a program that reads through an old pointer: %v", err)
	}
	l := load(t, chain.OnTCIngress, chain.Ingress, module, testModule(t, "pass", "after", nil))
	if ret, out := run(t, l.Program, udpPacket(t, 1, nil)); ret != tcNext || out[0] != 7 {
		t.Errorf("action %d, first byte %d", ret, out[0])
	}
}

// A global function that writes through a dynptr of a ring buffer moves no packet, with and without the packet's
// context.
func TestDynptrOfRing(t *testing.T) {
	needsRoot(t)
	if err := features.HaveProgramHelper(ebpf.SchedCLS, asm.FnRingbufReserveDynptr); err != nil {
		t.Skipf("dynptrs of ring buffers need Linux 5.19: %v", err)
	}
	for _, side := range []chain.Side{chain.OnXDP, chain.OnTCIngress} {
		for _, dir := range []chain.Direction{chain.Egress, chain.Ingress} {
			l, err := Load(side, dir, testModule(t, "ringnote", "ringnote", nil))
			if err != nil {
				t.Errorf("%s %s: %v", side, dir, err)
				continue
			}
			l.Close()
		}
	}
}

// Static functions are verified where they are called: only global ones are called through another function.
func TestFencedFunctions(t *testing.T) {
	known := verifierTracksMoves
	t.Cleanup(func() { verifierTracksMoves = known })
	verifierTracksMoves = func() bool { return false }
	spec, err := testModule(t, "stale", "stale", nil).Spec(chain.TC)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, ins := range new(linker).fence(spec.Programs["kerb_ingress"].Instructions, "kerb_ingress", new(mapSet)) {
		if name := ins.Symbol(); name != "" {
			got = append(got, name)
		}
	}
	if want := []string{"shove_fenced"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Where the verifier does not know which functions move packets, calls go through another function, and return the
// same.
func TestGlobalFunctionMoves(t *testing.T) {
	known := verifierTracksMoves
	t.Cleanup(func() { verifierTracksMoves = known })
	for _, sees := range []bool{known(), false} {
		verifierTracksMoves = func() bool { return sees }
		for _, side := range []chain.Side{chain.OnXDP, chain.OnTCIngress} {
			t.Run(fmt.Sprintf("%s, the verifier sees moves: %t", side, sees), func(t *testing.T) {
				l := load(t, side, chain.Ingress, testModule(t, "stale", "stale", nil), testModule(t, "pass", "after", nil))
				packet := udpPacket(t, 1, nil)
				if ret, _ := run(t, l.Program, packet); ret != map[bool]int32{true: xdpPass, false: tcNext}[side == chain.OnXDP] {
					t.Errorf("action %d", ret)
				}
				packet[0] = 7
				if ret, _ := run(t, l.Program, packet); ret != map[bool]int32{true: xdpDrop, false: tcShot}[side == chain.OnXDP] {
					t.Errorf("action %d for a packet that the module drops", ret)
				}
			})
		}
	}
}
