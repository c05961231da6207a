// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"testing"

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

// Where the verifier does not know which functions move packets, calls go through another function, and return the same.
func TestGlobalFunctionMoves(t *testing.T) {
	known := seesMoves
	t.Cleanup(func() { seesMoves = known })
	for _, sees := range []bool{known(), false} {
		seesMoves = func() bool { return sees }
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
