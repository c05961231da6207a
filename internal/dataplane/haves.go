// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// haveTCX tries to attach to an interface that cannot exist: a kernel with TCX (6.6) returns ENODEV, others EINVAL.
var haveTCX = sync.OnceValue(func() bool {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}})
	if err != nil {
		return false
	}
	defer prog.Close()
	l, err := link.AttachTCX(link.TCXOptions{Interface: 1<<31 - 1, Program: prog, Attach: ebpf.AttachTCXIngress})
	if err == nil {
		l.Close()
		return true
	}
	return errors.Is(err, unix.ENODEV)
})

// haveXDPFrags reports whether XDP programs support packets in several buffers (Linux 5.18).
var haveXDPFrags = sync.OnceValue(func() bool {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, AttachType: ebpf.AttachXDP, Flags: xdpHasFrags,
		License:      "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}})
	if err != nil {
		return false
	}
	prog.Close()
	return true
})
