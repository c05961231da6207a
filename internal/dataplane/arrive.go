// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/kerb-edge/kerb/sdk"
)

// Arrive makes frames arrive on interfaces, as if they came from the network. A packet socket can only send. A packet
// reaches the ingress of an interface by bpf_clone_redirect() with BPF_F_INGRESS, which a test run executes like any
// other helper call (net/core/filter.c: __bpf_rx_skb, dev_forward_skb). The clone is queued like a packet from a veth,
// and meets the programs on TC. Its mark is zero, and its checksum is unverified.
func Arrive(frames []sdk.Arrival) error {
	if len(frames) == 0 {
		return nil
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "kerb_arrive", Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, priorityOffset, asm.Word),
			asm.Mov.Imm(asm.R3, 1), // BPF_F_INGRESS
			asm.FnCloneRedirect.Call(),
			asm.Return(),
		}})
	if err != nil {
		return fmt.Errorf("load the program that delivers frames: %w", err)
	}
	defer prog.Close()
	var errs []error
	for _, f := range frames {
		// The priority carries the ifindex, and is not kept.
		ret, err := prog.Run(&ebpf.RunOptions{Data: f.Frame, Context: struct {
			_        [8]uint32
			Priority uint32
		}{Priority: f.Ifindex}})
		if err == nil && int32(ret) < 0 {
			err = syscall.Errno(-int32(ret))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("interface %d, %d bytes: %w", f.Ifindex, len(f.Frame), err))
		}
	}
	return errors.Join(errs...)
}

const priorityOffset = 32 // of priority in struct __sk_buff (linux/bpf.h)
