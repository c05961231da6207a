// SPDX-License-Identifier: Apache-2.0

// Package droptest checks whether the kernel reports dropped packets, for tests that need it.
package droptest

import (
	"errors"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
)

const linux517 = 5<<16 | 17<<8 // the first kernel with drop reasons

// Shown returns why the kernel does not report dropped packets, or nil if it does.
func Shown() error {
	version, err := features.LinuxVersionCode()
	if err != nil {
		return err
	}
	if version < linux517 {
		return errors.New("it is older than Linux 5.17")
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		return err
	}
	defer prog.Close()
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: "kfree_skb", Program: prog})
	if err != nil {
		return err
	}
	return l.Close()
}
