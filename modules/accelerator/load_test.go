// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// Structures that only the data plane writes.
type (
	pairKey       struct{ Client, Server uint32 }
	offerEntry    struct{ Client, Server uint64 }
	portKey       struct{ Netns, Port uint64 }
	listenerEntry struct {
		File        fileKey
		Sk, Cookie  uint64
		Mixed, Zero uint32
	}
	endEntry struct {
		Sk, Peer, Netns            uint64
		Pair                       pairKey
		Client, Server             uint32
		Stop, Out                  uint32
		IsClient, Quiet            uint8
		Plain, Zero                uint8
		Messages, Seen             uint32
		RunMessages, Turns, Queued uint32
		RunBytes                   uint64
		Redirects, UncountedBytes  uint64
		Uncounted, Last, Heard     uint32
		Process, Executed          uint32
		Written                    uint32
	}
)

func TestVerifies(t *testing.T) {
	sdktest.NeedRoot(t)
	l, err := dataplane.LoadSockets(module(t))
	sdktest.Explain(t, err)
	l.Close()
}

// The Go structures have the layout that the data plane was compiled with.
func TestLayouts(t *testing.T) {
	spec, err := pkgstest.Package(t).Spec(string(chain.Sockets))
	if err != nil {
		t.Fatal(err)
	}
	for name, mirror := range map[string]any{
		"accel_config": configEntry{}, "accel_service": serviceEntry{}, "accel_visible": visibleEntry{},
		"accel_file":       fileKey{},
		"accel_executable": executableEntry{}, "accel_address": addressKey{}, "accel_destination": destinationEntry{},
		"accel_route":  routeKey{},
		"accel_counts": countsEntry{}, "accel_event": event{}, "accel_pair": pairKey{}, "accel_offer": offerEntry{},
		"accel_listener": listenerEntry{},
		"accel_end":      endEntry{},
	} {
		sdktest.Layout(t, spec.Types, name, mirror)
	}
}

// On machines that reorder loads, such as arm64, the program contains barriers; the verifier accepts these paths, too.
func TestVerifiesWhereLoadsAreNotOrdered(t *testing.T) {
	sdktest.NeedRoot(t)
	spec, err := pkgstest.Package(t).Spec(string(chain.Sockets))
	if err != nil {
		t.Fatal(err)
	}
	questions, barriers := 0, 0
	for _, p := range spec.Programs {
		for i, in := range p.Instructions {
			if r := btf.CORERelocationMetadata(&in); r != nil && strings.Contains(r.String(), "pt_regs") &&
				strings.Contains(r.String(), "exists") {
				questions++
				p.Instructions[i] = asm.Mov.Imm(in.Dst, 0).WithSymbol(in.Symbol()).WithSource(in.Source())
			}
			if in.OpCode.AtomicOp() == asm.Xchg {
				barriers++
			}
		}
	}
	if questions == 0 || barriers == 0 {
		t.Fatalf("%d questions which machine it is, %d barriers", questions, barriers)
	}
	bpf, err := ebpf.NewCollection(spec)
	if errors.Is(err, unix.EPERM) || errors.Is(err, ebpf.ErrNotSupported) { // from the guard, which is optional
		delete(spec.Programs, "guard")
		bpf, err = ebpf.NewCollection(spec)
	}
	if err != nil {
		t.Fatalf("%.2000v", err)
	}
	bpf.Close()
}
