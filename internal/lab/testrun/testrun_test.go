// SPDX-License-Identifier: Apache-2.0

package testrun

import (
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// A program runs exactly as often as requested, despite signals.
func TestRunIsNotInterrupted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	count, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer count.Close()
	code := asm.Instructions{
		asm.LoadMapValue(asm.R1, count.FD(), 0),
		asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord),
		asm.Add.Imm(asm.R2, 1),
		asm.StoreMem(asm.R1, 0, asm.R2, asm.DWord),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: code})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := unix.Gettid()
	signalled := make(chan struct{})
	go func() {
		defer close(signalled)
		for range 3 {
			time.Sleep(100 * time.Microsecond) // while the program runs
			unix.Tgkill(unix.Getpid(), thread, unix.SIGURG)
		}
	}()
	const runs = 1_000_000
	_, err = Run(p, &ebpf.RunOptions{Data: make([]byte, 64), Repeat: runs})
	<-signalled
	var got uint64
	if lookupErr := count.Lookup(uint32(0), &got); err != nil || lookupErr != nil || got != runs {
		t.Errorf("%d runs, want %d (%v, %v)", got, runs, err, lookupErr)
	}
}
