// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
)

// The verifier's work bounds how many modules fit into one program with the proxy (1,000,000 in all). Linux 6.18
// needs 100,000 instructions.
const maxVerified = 150000

// inlineMost is how many instructions the linker writes straight into a chain (internal/dataplane/inline.go). A call costs what a
// third of the fast way does.
const inlineMost = 512

func TestEntriesAreInlined(t *testing.T) {
	spec, err := pkgstest.Package(t).Spec(string(dataplane.TC))
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
		if n > inlineMost {
			t.Errorf("%s: %d instructions, more than %d", name, n, inlineMost)
		}
	}
}

func TestVerifies(t *testing.T) {
	pkgstest.NeedRoot(t)
	for _, c := range []struct {
		side dataplane.Side
		dir  dataplane.Direction
	}{{dataplane.OnTCIngress, dataplane.Egress}, {dataplane.OnTCEgress, dataplane.Ingress}} {
		t.Run(string(c.dir), func(t *testing.T) {
			l, err := dataplane.Load(c.side, c.dir, module(t, nil))
			pkgstest.Explain(t, err)
			defer l.Close()
			info, err := l.Program.Info()
			if err != nil {
				t.Fatal(err)
			}
			n, known := info.VerifiedInstructions()
			size, _ := info.TranslatedSize()
			t.Logf("%d instructions verified, %d bytes", n, size)
			if known && n > maxVerified {
				t.Errorf("%d instructions verified, more than %d", n, maxVerified)
			}
		})
	}
}
