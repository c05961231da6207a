// SPDX-License-Identifier: Apache-2.0

// Package testrun runs programs on test packets an exact number of times.
package testrun

import (
	"errors"
	"runtime"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Run is p.Run, but without signals of Go's scheduler, which interrupts threads by SIGURG: a test run of many
// repetitions that a signal interrupts begins again, although maps have counted those before (BPF_PROG_TEST_RUN fails
// with EINTR, and ebpf.Program.Run repeats it).
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
