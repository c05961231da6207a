// SPDX-License-Identifier: Apache-2.0

// Package testrun runs programs on test packets an exact number of times.
package testrun

import (
	"errors"
	"runtime"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Run is p.Run with SIGURG blocked, with which Go's scheduler interrupts threads: after a signal, BPF_PROG_TEST_RUN
// fails with EINTR and ebpf.Program.Run restarts it, although maps have counted the repetitions so far.
func Run(p *ebpf.Program, opts *ebpf.RunOptions) (result uint32, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	preempt := unix.Sigset_t{Val: [16]uint64{1 << (unix.SIGURG - 1)}}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &preempt, nil); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, unix.PthreadSigmask(unix.SIG_UNBLOCK, &preempt, nil)) }()
	return p.Run(opts)
}
