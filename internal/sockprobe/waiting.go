// SPDX-License-Identifier: Apache-2.0

package sockprobe

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// waitingCheck waits for a timer of the kernel, while the others run.
type waitingCheck struct {
	name  string
	mode  mode
	begin func(*pair) error
	end   func(*pair) error
}

var waiting = []waitingCheck{{"keepalive", redirected, keepAlive, stillAlive}}

// keepAliveAfter is the least that TCP_KEEPIDLE can be.
const keepAliveAfter = 1 // s

// keepAlive: an end that has only sent and received by redirection is asked whether it is alive, and answers.
func keepAlive(p *pair) error {
	for _, fd := range []int{p.a, p.b} {
		for _, o := range [][3]int{{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepAliveAfter},
			{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1}, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 1}} {
			if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
				return err
			}
		}
	}
	return p.exchange()
}

// stillAlive waits for a keep-alive probe to be answered, which the counter of received segments shows, and exchanges
// data then.
func stillAlive(p *pair) error {
	for end := time.Now().Add(3 * keepAliveAfter * time.Second); ; time.Sleep(20 * time.Millisecond) {
		info, err := unix.GetsockoptTCPInfo(p.a, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return err
		}
		if info.Segs_in > segmentsOfHandshake { // the answer
			return p.exchange()
		}
		if time.Now().After(end) {
			return errors.New("no keep-alive probe was answered in three times the time")
		}
	}
}

// segmentsOfHandshake: SYN-ACK. The bytes went another way.
const segmentsOfHandshake = 1

type meminfo struct{ receive, send uint32 }

// memoryOf reads SO_MEMINFO (sock_diag(7), INET_DIAG_SKMEMINFO).
func memoryOf(fd int) (meminfo, error) {
	var words [9]uint32
	size := uint32(unsafe.Sizeof(words))
	const receive, queued = 0, 5 // SK_MEMINFO_RMEM_ALLOC, SK_MEMINFO_WMEM_QUEUED
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&words)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return meminfo{}, fmt.Errorf("getsockopt(SO_MEMINFO): %w", errno)
	}
	return meminfo{words[receive], words[queued]}, nil
}
