// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Launches counts answers with a launch time.
type Launches struct {
	Timed   uint64 // that were sent, or would have been but for an error
	Late    uint64 // of these: their time was over when they were handed to the kernel
	Dropped uint64 // that etf has dropped, by its reports; other drops are not reported
}

// SendAt is Send for an answer that leaves at a time, ns of the launch clock (SO_TXTIME). It is the queueing discipline
// of the interface that holds it until then; others than these two send it at once. fq, by CLOCK_MONOTONIC, which also
// T1 is of, sends it not before its time, at once what is late already, and drops what is further ahead than its
// horizon (10 s). etf, by CLOCK_TAI, hands it to the driver its delta before the time, and drops what is late.
func (r *Receiver) SendAt(to Peer, data []byte, at int64) error { return r.send(to, data, &at) }

// SetLaunchClock sets the launch clock: unix.CLOCK_MONOTONIC unless set, or unix.CLOCK_TAI, which needs CAP_NET_ADMIN.
func (r *Receiver) SetLaunchClock(clock int32) error {
	if clock != unix.CLOCK_MONOTONIC && clock != unix.CLOCK_TAI {
		return errors.New("launch times are of CLOCK_MONOTONIC (fq) or CLOCK_TAI (etf)")
	}
	r.launchClock = clock
	for i := range r.senders {
		r.senders[i].timed, r.given[i].timed = false, false
	}
	return nil
}

// Launches also empties the error queues of sockets that answers with a launch time were sent from, the program's own
// included.
func (r *Receiver) Launches() Launches {
	for i := range r.senders {
		r.collectLaunches(&r.senders[i])
		r.collectLaunches(&r.given[i])
	}
	return r.launches
}

// reportErrors is SOF_TXTIME_REPORT_ERRORS of linux/net_tstamp.h.
const reportErrors = 1 << 1

// enableLaunch has a socket take launch times, and counts one.
func (r *Receiver) enableLaunch(s *sender, at int64) error {
	clock := r.launchClock
	if clock == 0 {
		clock = unix.CLOCK_MONOTONIC
	}
	if !s.timed {
		how := struct{ clock, flags int32 }{clock, reportErrors} // struct sock_txtime
		text := unsafe.String((*byte)(unsafe.Pointer(&how)), unsafe.Sizeof(how))
		if err := unix.SetsockoptString(s.fd, unix.SOL_SOCKET, unix.SO_TXTIME, text); err != nil {
			err = fmt.Errorf("launch times by clock %d: %w", clock, err)
			if errors.Is(err, unix.EPERM) {
				err = fmt.Errorf("%w: CLOCK_TAI needs CAP_NET_ADMIN", err)
			}
			return err
		}
	}
	var now unix.Timespec
	if err := unix.ClockGettime(clock, &now); err != nil {
		return fmt.Errorf("clock %d: %w", clock, err)
	}
	s.timed = true
	r.launches.Timed++
	if now.Nano() > at {
		r.launches.Late++
	}
	return nil
}

// launchTime is the control message that has one.
func launchTime(at int64) []byte {
	out := make([]byte, unix.CmsgSpace(8))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&out[0]))
	h.Level, h.Type = unix.SOL_SOCKET, unix.SCM_TXTIME
	h.SetLen(unix.CmsgLen(8))
	binary.NativeEndian.PutUint64(out[unix.CmsgLen(0):], uint64(at))
	return out
}

// collectLaunches counts what the kernel says of packets that it has not sent.
func (r *Receiver) collectLaunches(s *sender) {
	control := make([]byte, 512)
	for s.timed {
		_, n, _, _, err := unix.Recvmsg(s.fd, nil, control, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err != nil {
			return
		}
		messages, err := unix.ParseSocketControlMessage(control[:n])
		if err != nil {
			continue
		}
		for _, m := range messages {
			if isLaunch(m) {
				r.launches.Dropped++
			}
		}
	}
}

// isLaunch reports whether a message of an error queue is about a launch time: the origin is the fifth byte of struct
// sock_extended_err.
func isLaunch(m unix.SocketControlMessage) bool {
	isError := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR ||
		m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
	return isError && len(m.Data) > 4 && m.Data[4] == unix.SO_EE_ORIGIN_TXTIME
}
