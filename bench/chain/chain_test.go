// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/lab/ebpfvm"
)

func openTestTestbed(t *testing.T) (*testbed, *objects) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	objs, err := loadObjects(ipv4)
	if errors.Is(err, bench.ErrNotBuilt) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	s, err := openTestbed(true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return s, objs
}

// Every config passes every packet through every module, on each hook, before
// and after a module is replaced.
func TestEveryConfigCountsEveryPacket(t *testing.T) {
	s, objs := openTestTestbed(t)
	for _, of := range []family{ipv4, ipv6} {
		objs.of, s.frame = of, frame(of)
		for _, tc := range []struct {
			name string
			kind string
			load func(string, int) (Chain, error)
		}{
			{"kerb", "tc", withKerb(dataplane.Load, of)},
			{"kerb", "xdp", withKerb(dataplane.Load, of)},
			{"kerb-flows", "tc", withFlows(of)},
			{"kerb-flows", "xdp", withFlows(of)},
			{"tcx", "tc", objs.loadTCX},
			{"clsact", "tc", objs.loadClsact},
			{"tailcall", "tc", objs.loadTailcall},
			{"tailcall", "xdp", objs.loadTailcall},
			{"bare", "tc", objs.loadBare},
			{"bare", "xdp", objs.loadBare},
		} {
			for _, n := range []int{1, 2, 16} {
				if err := s.exercise(tc.kind, n, tc.load); err != nil {
					t.Errorf("IPv%s, %s %s/%d: %v", of, tc.name, tc.kind, n, err)
				}
			}
		}
	}
}

func (s *testbed) exercise(kind string, n int, load func(string, int) (Chain, error)) error {
	ch, err := load(kind, n)
	if err != nil {
		return err
	}
	defer ch.Close()
	p, err := s.place(kind, ch)
	if err != nil {
		return err
	}
	defer p.detach()
	if _, err := s.send(kind, ch, 1000); err != nil {
		return err
	}
	if err := check(ch, n, 1000); err != nil {
		return err
	}
	counts, err := ch.Packets() // more than sent if a signal has interrupted the test run: the library repeats it
	if err != nil {
		return err
	}
	if check(ch, n, slices.Max(counts)+1) == nil {
		return errors.New("check accepts more than was counted")
	}
	if err := p.swap(); err != nil {
		return err
	}
	before, err := ch.Packets()
	if err != nil {
		return err
	}
	if _, err := s.send(kind, ch, 10); err != nil {
		return err
	}
	after, err := ch.Packets()
	if err != nil {
		return err
	}
	for i := range after {
		after[i] -= before[i]
	}
	if slices.Min(after) < 10 {
		return errors.New("after the swap not every module counts")
	}
	return nil
}

// Instructions are those on the path of the frame: each module adds the same number, and counting packets adds some.
func TestInstructions(t *testing.T) {
	s, objs := openTestTestbed(t)
	for _, hook := range []string{"xdp", "tc"} {
		executed := func(load func(string, int) (Chain, error), n int) float64 {
			ch, err := load(hook, n)
			if err != nil {
				t.Fatal(err)
			}
			defer ch.Close()
			samples, err := s.instructions(ch)
			if err != nil || len(samples) == 0 {
				t.Fatalf("%d samples, %v", len(samples), err)
			}
			return samples[len(samples)-1].Value
		}
		kerb, uncounted := withKerb(dataplane.Load, ipv4), withKerb(dataplane.LoadUncounted, ipv4)
		if two, four, six := executed(kerb, 2), executed(kerb, 4), executed(kerb, 6); four-two != six-four || two >= four {
			t.Errorf("%s: 2, 4 and 6 modules execute %v, %v and %v instructions", hook, two, four, six)
		}
		if with, without, bare := executed(kerb, 8), executed(uncounted, 8), executed(objs.loadBare, 8); with <= without ||
			bare <= 0 || bare == executed(objs.loadBare, 1) {
			t.Errorf("%s: %v instructions, %v without counts, %v by hand", hook, with, without, bare)
		}
	}
}

// Executed instructions are those of an ordinary packet, not of one whose latency is measured.
func TestExecutedIsOrdinary(t *testing.T) {
	s, _ := openTestTestbed(t)
	ch, err := withKerb(dataplane.Load, ipv4)("xdp", 1)
	if err != nil {
		t.Fatal(err)
	}
	defer ch.Close()
	code, err := ch.(*kerb).Code()
	if err != nil {
		t.Fatal(err)
	}
	p, err := ebpfvm.Load(code, ebpf.XDP)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.executed(p)
	if err != nil {
		t.Fatal(err)
	}
	vm := ebpfvm.New()
	for i := range 10 {
		r, err := vm.Run(p, ebpfvm.Input{Frame: s.frame, Random: 1 << 31})
		if err != nil {
			t.Fatal(err)
		}
		if i > 3 && r.Executed != got {
			t.Errorf("packet %d executes %d instructions, %d are reported", i, r.Executed, got)
		}
	}
}
