// SPDX-License-Identifier: Apache-2.0

package sdk_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"iter"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// newRing is a ring buffer as a control plane has it: opened by a descriptor that came from elsewhere.
func newRing(t *testing.T) *ebpf.Map {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF")
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	made, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(os.Getpagesize())})
	if err != nil {
		t.Fatal(err)
	}
	defer made.Close()
	fd, err := unix.FcntlInt(uintptr(made.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ring, err := ebpf.NewMapFromFD(fd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ring.Close() })
	return ring
}

// sender sends the eight bytes that follow a frame's Ethernet header, with the flags of bpf_ringbuf_output.
func sender(t *testing.T, ring *ebpf.Map, flags int32) func(uint64) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SocketFilter, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R2, 0),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, -8),
			asm.Mov.Imm(asm.R4, 8),
			asm.FnSkbLoadBytes.Call(),
			asm.JNE.Imm(asm.R0, 0, "out"),
			asm.LoadMapPtr(asm.R1, ring.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -8),
			asm.Mov.Imm(asm.R3, 8),
			asm.Mov.Imm(asm.R4, flags),
			asm.FnRingbufOutput.Call(),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
			asm.Return(),
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return func(n uint64) {
		frame := make([]byte, 64)
		binary.NativeEndian.PutUint64(frame[14:], n)
		if _, err := prog.Run(&ebpf.RunOptions{Data: frame}); err != nil {
			t.Error(err)
		}
	}
}

// More events than fit into the ring, read while they are sent, arrive in order, also those that do not wake the
// reader.
func TestEvents(t *testing.T) {
	const noWakeup = 1
	for name, way := range map[string]struct {
		flags int32
		read  func(context.Context, *ebpf.Map) iter.Seq2[[]byte, error]
	}{"adaptive": {0, sdk.Events}, "no wake-up": {noWakeup, sdk.Events}, "prompt": {0, sdk.PromptEvents}} {
		t.Run(name, func(t *testing.T) {
			ring := newRing(t)
			send := sender(t, ring, way.flags)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			const rounds, each = 5, 100 // a page holds 256 or more
			send(0)
			want := uint64(0)
			for raw, err := range way.read(ctx, ring) {
				if err != nil {
					t.Fatal(err)
				}
				if got := binary.NativeEndian.Uint64(raw); got != want {
					t.Fatalf("event %d, want %d", got, want)
				}
				if want++; want == rounds*each {
					return
				}
				if want%each == 1 {
					for i := range uint64(each) {
						send(want + i)
					}
				}
			}
			t.Errorf("ended after %d events", want)
		})
	}
}

// A ring is not mapped before it has an event, since its memory would count twice for an idle process.
func TestEventsMapNoEmptyRing(t *testing.T) {
	mapped := func() int {
		data, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Count(data, []byte("anon_inode:bpf-map"))
	}
	ring := newRing(t)
	send, before := sender(t, ring, 0), mapped()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	time.AfterFunc(10*time.Millisecond, func() {
		if n := mapped(); n != before {
			t.Errorf("%d maps are mapped, %d before", n, before)
		}
		send(7)
	})
	for raw, err := range sdk.PromptEvents(ctx, ring) {
		if err != nil || binary.NativeEndian.Uint64(raw) != 7 || mapped() == before {
			t.Errorf("%x, %v, %d maps are mapped, %d before", raw, err, mapped(), before)
		}
		cancel()
	}
}

func TestEventsEndWithTheContext(t *testing.T) {
	ring := newRing(t)
	before := runtime.NumGoroutine()
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		for raw, err := range sdk.PromptEvents(ctx, ring) {
			t.Errorf("%x, %v", raw, err)
		}
	}
	// What cancel has started has ended before Events did, but its goroutine may still be on its last instructions.
	for end := time.Now().Add(30 * time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

// A reader that stops early leaves the remaining events to the next.
func TestEventsGoOnWhereTheLastReaderStopped(t *testing.T) {
	ring := newRing(t)
	send := sender(t, ring, 0)
	for n := range uint64(10) {
		send(n)
	}
	for n := range uint64(10) {
		for raw, err := range sdk.Events(t.Context(), ring) {
			if err != nil || binary.NativeEndian.Uint64(raw) != n {
				t.Fatalf("%x, %v, want %d", raw, err, n)
			}
			break
		}
	}
}

func TestEventsOfWhatIsNoRing(t *testing.T) {
	newRing(t) // skips without root
	array, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer array.Close()
	n := 0
	for _, err := range sdk.Events(t.Context(), array) {
		if n++; err == nil {
			t.Error("read an array as a ring")
		}
	}
	if n != 1 {
		t.Errorf("%d errors, want one", n)
	}
}
