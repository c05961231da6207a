// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"testing"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// The verifier's work bounds how many modules fit into one program with the proxy (1,000,000 in all). Linux 6.18
// needs 58,000 instructions, 6.1 needs 81,000.
const (
	maxVerified      = 120000
	maxVerifiedNamed = 400000 // with source: instance
)

// maxInline is the number of instructions up to which the linker inlines a function into a chain
// (internal/dataplane/inline.go). A call costs a third of the fast path.
const maxInline = 512

func TestEntriesAreInlined(t *testing.T) {
	spec, err := pkgstest.Package(t).Spec(string(chain.TC))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kerb_egress", "kerb_ingress"} {
		code := spec.Programs[name].Instructions
		n := 1
		for n < len(code) && btf.FuncMetadata(&code[n]) == nil {
			n++
		}
		t.Logf("%s: %d instructions", name, n)
		if n > maxInline {
			t.Errorf("%s: %d instructions, more than %d", name, n, maxInline)
		}
	}
}

func TestVerifies(t *testing.T) {
	sdktest.NeedRoot(t)
	for _, c := range []struct {
		side chain.Side
		dir  chain.Direction
	}{{chain.OnTCIngress, chain.Egress}, {chain.OnTCEgress, chain.Ingress}} {
		for source, most := range map[string]uint32{sourceClient: maxVerified, sourceInstance: maxVerifiedNamed} {
			t.Run(string(c.dir)+"/"+source, func(t *testing.T) {
				l, err := dataplane.Load(c.side, c.dir, module(t, map[string]any{"source_instance": source == sourceInstance}))
				sdktest.Explain(t, err)
				defer l.Close()
				sdktest.CheckVerified(t, l.Program, most)
			})
		}
	}
}

// On weakly ordered processors (arm64) the epoch must be incremented after the map was changed, and a copy must be
// compared with the map after the epoch was read. No test run can show this. Therefore the test checks that the code
// has the lock and the barrier of the sequence counter (hot.h), and no atomic add, which is unordered without a result.
func TestEpochsAreOrdered(t *testing.T) {
	spec, err := pkgstest.Package(t).Spec(string(chain.TC))
	if err != nil {
		t.Fatal(err)
	}
	locks, barriers := 0, 0
	for _, p := range spec.Programs {
		function := ""
		epoch := false // the instructions after a load of the map, until the next map
		for i := range p.Instructions {
			in := &p.Instructions[i]
			if f := btf.FuncMetadata(in); f != nil {
				function = f.Name
			}
			if in.IsLoadFromMap() {
				epoch = in.Reference() == "epochs"
			}
			switch {
			case epoch && in.OpCode.Class() == asm.StXClass && in.OpCode.Mode() == asm.AtomicMode:
				t.Errorf("%s: an epoch is counted without order: %v", function, in)
			case in.IsBuiltinCall() && asm.BuiltinFunc(in.Constant) == asm.FnSpinLock:
				locks += countedUnderLock(t, function, p.Instructions[i+1:])
			case function == "px_hot_store" && in.IsBuiltinCall() && asm.BuiltinFunc(in.Constant) == asm.FnKtimeGetNs:
				barriers += lookupsBehind(p.Instructions[i+1:])
			}
		}
	}
	if locks == 0 || barriers == 0 {
		t.Errorf("%d epochs counted under their lock, %d lookups behind a barrier", locks, barriers)
	}
}

// countedUnderLock returns 1 if only a count is between lock and unlock.
func countedUnderLock(t *testing.T, function string, behind asm.Instructions) int {
	stores := 0
	for i := range behind {
		in := &behind[i]
		if in.OpCode.Class() == asm.StXClass {
			stores++
		}
		if in.IsBuiltinCall() {
			if asm.BuiltinFunc(in.Constant) == asm.FnSpinUnlock && stores == 1 {
				return 1
			}
			break
		}
	}
	t.Errorf("%s: %d stores under the lock", function, stores)
	return 0
}

// lookupsBehind returns 1 if a map lookup follows.
func lookupsBehind(behind asm.Instructions) int {
	for i := range behind {
		if behind[i].IsBuiltinCall() {
			if asm.BuiltinFunc(behind[i].Constant) == asm.FnMapLookupElem {
				return 1
			}
			break
		}
	}
	return 0
}
