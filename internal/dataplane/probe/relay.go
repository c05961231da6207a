// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// Relay is a SOCKHASH with a program that sees every message sent on its TCP sockets, and hands it to the other end's
// receive queue, or passes it on to TCP. It ends with Close; nothing of it is pinned.
type Relay struct{ sockets *ebpf.Map }

// Offsets in struct sk_msg_md (linux/bpf.h).
const (
	remotePort = 60 // u32, network byte order
	localPort  = 64 // u32, host byte order
)

const (
	relaySockets = 64
	toIngress    = 1 // BPF_F_INGRESS
	passMessage  = 1 // SK_PASS
)

// ends is the key of a socket: its ports.
type ends struct{ Local, Remote uint32 }

// NewRelay makes one; redirect: messages go to the other end's socket.
func NewRelay(redirect bool) (*Relay, error) {
	sockets, err := ebpf.NewMap(&ebpf.MapSpec{Name: objectName, Type: ebpf.SockHash, KeySize: 8, ValueSize: 8,
		MaxEntries: relaySockets})
	if err != nil {
		return nil, fmt.Errorf("create a map of sockets: %w", err)
	}
	r := &Relay{sockets}
	if err := r.attach(redirect); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Relay) attach(redirect bool) error {
	code := asm.Instructions{asm.Mov.Imm(asm.R0, passMessage), asm.Return()}
	if redirect {
		code = asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, remotePort, asm.Word),
			asm.HostTo(asm.BE, asm.R2, asm.Word),
			asm.StoreMem(asm.RFP, -8, asm.R2, asm.Word), // the other end's Local
			asm.LoadMem(asm.R2, asm.R1, localPort, asm.Word),
			asm.StoreMem(asm.RFP, -4, asm.R2, asm.Word),
			asm.LoadMapPtr(asm.R2, r.sockets.FD()),
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, -8),
			asm.Mov.Imm(asm.R4, toIngress),
			asm.FnMsgRedirectHash.Call(),
			asm.Return(),
		}
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: objectName, Type: ebpf.SkMsg, License: "Dual BSD/GPL",
		Instructions: code})
	if err != nil {
		return fmt.Errorf("load a program for messages: %w", err)
	}
	defer prog.Close() // the map keeps it
	if err := link.RawAttachProgram(link.RawAttachProgramOptions{Target: r.sockets.FD(), Program: prog,
		Attach: ebpf.AttachSkMsgVerdict}); err != nil {
		return fmt.Errorf("attach a program to a map of sockets: %w", err)
	}
	return nil
}

// Put takes an established socket in.
func (r *Relay) Put(fd int, local, remote uint16) error {
	if err := r.sockets.Put(ends{uint32(local), uint32(remote)}, uint64(fd)); err != nil {
		return fmt.Errorf("put a socket into a map: %w", err)
	}
	return nil
}

// Close ends the relay; its sockets continue by TCP.
func (r *Relay) Close() error { return r.sockets.Close() }
