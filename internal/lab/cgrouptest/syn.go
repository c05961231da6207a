// SPDX-License-Identifier: Apache-2.0

package cgrouptest

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// PatientSYNs sets the SYN retransmission timeout of sockets that this process opens from now on to at least 20 s
// (bpf_sock_ops), since a busy machine may not reply within the default of 1 s. A connection that is established faster
// has thus lost neither SYN nor SYN-ACK. The process is in a cgroup below the root until the test ends.
func PatientSYNs(t testing.TB, cgroup string) {
	t.Helper()
	const timeoutInit = 1 // BPF_SOCK_OPS_TIMEOUT_INIT
	dir := New(t, "", cgroup)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SockOps, AttachType: ebpf.AttachCGroupSockOps,
		License: "GPL", Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // op
			asm.JNE.Imm(asm.R2, timeoutInit, "out"),
			asm.Mov.Imm(asm.R2, 20_000),               // jiffies, of which a second has at most 1000
			asm.StoreMem(asm.R1, 4, asm.R2, asm.Word), // reply
			asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
			asm.Return(),
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	l, err := link.AttachCgroup(link.CgroupOptions{Path: dir, Attach: ebpf.AttachCGroupSockOps, Program: program})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	Enter(t, dir)
}
