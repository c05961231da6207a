// SPDX-License-Identifier: Apache-2.0

package costs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/lab/ebpfvm"
	"github.com/kerb-edge/kerb/internal/pkttest"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// loopback is the ingress interface of test runs.
const loopback = 1

var directions = []chain.Direction{chain.Egress, chain.Ingress}

// service is the control planes' view of the interface.
var service = sdk.Attachment{Service: "web", Interface: "veth0", Ifindex: loopback, MAC: "02:00:00:00:00:05", MTU: 1500,
	Addresses: []string{"10.1.0.5/24", "fd01::5/64"}}

// rig is a chain that runs in the kernel and in the interpreter, on the same maps.
type rig struct {
	t      testing.TB
	vm     *ebpfvm.VM
	cpu    int
	clock  *clock
	loaded *dataplane.Loaded
	kernel map[chain.Direction]*ebpf.Program
	code   map[chain.Direction]*ebpfvm.Program
}

// newRig loads a chain for both directions of a service, with the map contents that its control planes write.
func newRig(t testing.TB, hook string, members ...member) *rig {
	t.Helper()
	r := &rig{t: t, vm: ebpfvm.New(), cpu: pinThread(t), clock: newClock(t), kernel: map[chain.Direction]*ebpf.Program{},
		code: map[chain.Direction]*ebpfvm.Program{}}
	var all []dataplane.Module
	var compiled []sdk.Compiled
	spec := chain.Spec{}
	for _, m := range members {
		module, c := load(t, m)
		all, compiled = append(all, module), append(compiled, c)
		spec.Members = append(spec.Members, chain.Member{Name: module.Name, ID: module.ID, FailClosed: module.FailClosed})
	}
	for _, dir := range directions {
		if !runsOn(t, chain.Hook(hook), dir, all) {
			continue
		}
		spec.Side, spec.Direction = pkttest.Sides[hook][dir], dir
		var err error
		if r.loaded == nil {
			r.loaded, err = dataplane.Load(spec.Side, dir, all...)
			sdktest.Explain(t, err)
			t.Cleanup(r.loaded.Close)
			for i, c := range compiled {
				open(t, c, members[i].module, r.loaded.Maps[all[i].Name])
			}
		}
		if dir == chain.Ingress { // mirrored; comes after egress
			slices.Reverse(spec.Members)
		}
		kernel, code, err := r.loaded.RelinkWithCode(spec)
		sdktest.Explain(t, err)
		r.kernel[dir] = kernel
		if r.code[dir], err = ebpfvm.Load(code, kernel.Type()); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// runsOn reports whether all modules have a program for a direction.
func runsOn(t testing.TB, hook chain.Hook, dir chain.Direction, all []dataplane.Module) bool {
	t.Helper()
	for _, m := range all {
		spec, err := m.Spec(hook)
		if err != nil {
			t.Fatal(err)
		}
		if spec.Programs["kerb_"+string(dir)] == nil {
			return false
		}
	}
	return true
}

// open starts a control plane, which writes the service and virtual services to the maps.
func open(t testing.TB, c sdk.Compiled, name string, maps sdk.Maps) {
	t.Helper()
	running, err := c.Open(sdk.Live{Module: name, Maps: maps, Attachments: func() []sdk.Attachment { return instances },
		Resolve: func(netip.Addr) {}, Release: func(string) {}, Inject: func(uint32, []byte) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if v, is := running.(sdk.VirtualServiceUser); is {
		if err := v.VirtualServices(virtualServices); err != nil {
			t.Fatal(err)
		}
	}
}

// pinThread keeps the test on one CPU, whose values of per-CPU maps the interpreter uses.
func pinThread(t testing.TB) (cpu int) {
	t.Helper()
	runtime.LockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatal(err)
	}
	for !before.IsSet(cpu) {
		cpu++
	}
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.SchedSetaffinity(0, &before)
		runtime.UnlockOSThread()
	})
	return cpu
}

// count interprets packets, 10 us apart, with the clock at a round number and within one tick of the timer, so that the
// same packets always take the same instructions. The kernel must not have processed a packet yet.
func (r *rig) count(packets []packet) []ebpfvm.Result {
	r.t.Helper()
	const gap, round, jiffies = 10_000, 10_000_000_000, 1 << 12
	now := r.clock.read(r.t)
	now.Now = now.Now - now.Now%round + round
	now.Coarse, now.Jiffies = now.Now, now.Jiffies-now.Jiffies%jiffies+jiffies
	results := make([]ebpfvm.Result, len(packets))
	for i, p := range packets {
		now.Now += gap
		var err error
		if results[i], err = r.vm.Run(r.code[p.dir], ebpfvm.Input{Frame: p.frame, CPU: r.cpu, Clock: now}); err != nil {
			r.t.Fatalf("%s: %v", p.name, err)
		}
	}
	return results
}

// errTime is a difference that the clock may have caused: the kernel's time is between those of the two runs, and
// counts by time, of histograms for example, may fall between them.
var errTime = errors.New("of what depends on the time")

// measured are maps with durations of a packet, which are measured only in the kernel.
var measured = map[string]bool{"class_counts": true}

// compare runs a packet in both, and returns an error unless the results are equal.
func (r *rig) compare(p packet) error {
	in := ebpfvm.Input{Frame: p.frame, CPU: r.cpu}
	r.vm.Forget()
	earlier, first := r.interpret(p.dir, in)
	opts := &ebpf.RunOptions{Data: p.frame, DataOut: make([]byte, len(p.frame)+512)}
	action, err := r.kernel[p.dir].Run(opts)
	if errors.Is(err, unix.EINVAL) && len(p.frame) < 14+40 { // a test run rejects packets without an IP header
		return nil
	}
	if err != nil {
		return err
	}
	// The kernel's random number may be either of these; the result must match one of them.
	for _, in.Random = range []uint32{^uint32(0), 1 << 30} {
		r.vm.Rewind()
		later, last := r.interpret(p.dir, in)
		if err = r.differs(p, action, opts.DataOut, earlier, later, first, last); err == nil {
			return nil
		}
	}
	return err
}

// differs compares the kernel's result with two interpreted runs, and with the map elements that these accessed.
func (r *rig) differs(p packet, action uint32, out []byte, earlier, later ebpfvm.Result,
	first, last map[string]ebpfvm.Element) error {
	if earlier.Return != action && later.Return == earlier.Return {
		return fmt.Errorf("%s: action %d, in the kernel %d, of\n%x", p.name, int32(earlier.Return), int32(action), p.frame)
	}
	if !alike(earlier.Frame, later.Frame, out) {
		return fmt.Errorf("%s: packet\n%x, in the kernel\n%x, from\n%x", p.name, earlier.Frame, out, p.frame)
	}
	for key, e := range first {
		end, met := last[key]
		if now := e.Kernel(); met && !measured[e.Name] && !alike(e.Value, end.Value, now) {
			err := fmt.Errorf("%s: map %s, key %x:\n%x, in the kernel\n%x, of\n%x", p.name, e.Name, e.Key, e.Value, now, p.frame)
			if !bytes.Equal(e.Value, end.Value) {
				err = fmt.Errorf("%w, %w", err, errTime)
			}
			return err
		}
	}
	return nil
}

// interpret also returns the map elements that the packet accessed.
func (r *rig) interpret(dir chain.Direction, in ebpfvm.Input) (ebpfvm.Result, map[string]ebpfvm.Element) {
	r.t.Helper()
	in.Clock = r.clock.read(r.t)
	result, err := r.vm.Run(r.code[dir], in)
	if err != nil {
		r.t.Fatal(err)
	}
	elements := map[string]ebpfvm.Element{}
	for _, e := range r.vm.Elements() {
		elements[fmt.Sprint(e.Map, " ", e.Key)] = e
	}
	return result, elements
}

// alike compares the kernel's value with the values of two runs, one before and one after the kernel's: words in which
// the runs differ contain times or random numbers.
func alike(earlier, later, kernel []byte) bool {
	if (earlier == nil) != (later == nil) || len(earlier) != len(later) {
		return true
	}
	if (earlier == nil) != (kernel == nil) || len(earlier) != len(kernel) {
		return false
	}
	for at := 0; at < len(earlier); at += 4 {
		end := min(at+4, len(earlier))
		if bytes.Equal(earlier[at:end], later[at:end]) && !bytes.Equal(earlier[at:end], kernel[at:end]) {
			return false
		}
	}
	return true
}

// clock is a program that reads the clocks that programs use.
type clock struct {
	program *ebpf.Program
	values  *ebpf.Map
}

func newClock(t testing.TB) *clock {
	t.Helper()
	values, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 24, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { values.Close() })
	code := asm.Instructions{asm.LoadMapValue(asm.R6, values.FD(), 0)}
	for i, fn := range []asm.BuiltinFunc{asm.FnKtimeGetNs, asm.FnKtimeGetCoarseNs, asm.FnJiffies64} {
		code = append(code, fn.Call(), asm.StoreMem(asm.R6, int16(8*i), asm.R0, asm.DWord))
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL",
		Instructions: append(code, asm.Mov.Imm(asm.R0, 0), asm.Return())})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	return &clock{program, values}
}

func (c *clock) read(t testing.TB) ebpfvm.Clock {
	t.Helper()
	var now ebpfvm.Clock
	_, err := c.program.Run(&ebpf.RunOptions{Data: make([]byte, 64)})
	if err == nil {
		err = c.values.Lookup(uint32(0), &now)
	}
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// fragment makes an IPv4 frame a fragment.
func fragment(frame []byte, flagsAndOffset uint16) []byte {
	f := slices.Clone(frame)
	binary.BigEndian.PutUint16(f[20:], flagsAndOffset)
	f[24], f[25] = 0, 0
	var sum uint32
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	binary.BigEndian.PutUint16(f[24:], ^uint16(sum>>16+sum))
	return f
}
