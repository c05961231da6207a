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
	quietTime  = int64(time.Second) // idle CPUs are left alone when no packet has come for so long
)

// idleStates of CPUs take most of the time of a wake-up to be left (Linux, Documentation/power/pm_qos_interface.rst).
// The wish ends with its descriptor.
type idleStates struct {
	fd    int // -1: there is no wish
	polls bool
}

// openIdleStates opens /dev/cpu_dma_latency (Documentation/power/pm_qos_interface.rst). The kernel keeps a request
// only as long as its descriptor is open, so a process that dies leaves nothing behind.
func openIdleStates() (idleStates, error) {
	fd, err := unix.Open(idleDevice, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return idleStates{fd: -1}, fmt.Errorf("IdlePoll: %s: %w (it is root's, and not in every container)", idleDevice, err)
	}
	return idleStates{fd: fd}, nil
}

func (i *idleStates) close() {
	i.set(false) // a child may have the descriptor, too
	if i.fd >= 0 {
		_ = unix.Close(i.fd)
	}
	i.fd = -1
}

// set has CPUs that have nothing to do poll, which any task ends at once, or halt as they like.
func (i *idleStates) set(polls bool) {
	if i.fd < 0 || polls == i.polls {
		return
	}
	us := int32(2_000_000_000) // that leaving an idle state may take: PM_QOS_CPU_LATENCY_DEFAULT_VALUE
	if polls {
		us = 0
	}
	i.polls = polls
	_, _ = unix.Write(i.fd, unsafe.Slice((*byte)(unsafe.Pointer(&us)), unsafe.Sizeof(us))) // the device takes any number
}
