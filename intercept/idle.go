// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	idleDevice = "/dev/cpu_dma_latency"
	quietTime  = int64(time.Second) // without a packet, after which idle CPUs may halt again
)

// idleStates is a PM QoS request for the idle states of CPUs: leaving one takes most of the time of a wake-up. The
// kernel drops the request when its descriptor is closed.
type idleStates struct {
	fd    int // -1: no request
	polls bool
}

// openIdleStates opens /dev/cpu_dma_latency (Linux, Documentation/power/pm_qos_interface.rst).
func openIdleStates() (idleStates, error) {
	fd, err := unix.Open(idleDevice, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return idleStates{fd: -1}, fmt.Errorf("IdlePoll: %s: %w (it is root's, and not in every container)", idleDevice, err)
	}
	return idleStates{fd: fd}, nil
}

func (i *idleStates) close() {
	i.set(false) // a child process may have inherited the descriptor
	if i.fd >= 0 {
		_ = unix.Close(i.fd)
	}
	i.fd = -1
}

// set makes idle CPUs poll, which any task that becomes runnable ends at once, or allows them to halt.
func (i *idleStates) set(polls bool) {
	if i.fd < 0 || polls == i.polls {
		return
	}
	us := int32(2_000_000_000) // accepted exit latency: PM_QOS_CPU_LATENCY_DEFAULT_VALUE
	if polls {
		us = 0
	}
	i.polls = polls
	_, _ = unix.Write(i.fd, unsafe.Slice((*byte)(unsafe.Pointer(&us)), unsafe.Sizeof(us))) // the device accepts any value
}
