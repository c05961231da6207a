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
	Timed   uint64 // sent, or failed after the launch time was set
	Late    uint64 // of these: the launch time had passed when it was sent
	Dropped uint64 // reported as dropped by etf; other drops are not reported
}

// SendAt is Send for an answer with a launch time (SO_TXTIME), in ns of the launch clock. The queueing discipline of
// the interface holds the packet until then. fq (CLOCK_MONOTONIC, as T1) sends it no earlier than its time, sends late
// packets at once, and drops packets beyond its horizon (10 s). etf (CLOCK_TAI) passes it to the driver its delta
// before its time, and drops late packets. Others send it at once.
func (r *Receiver) SendAt(to Peer, data []byte, at int64) error { return r.send(to, data, &at) }

// SetLaunchClock sets the launch clock: unix.CLOCK_MONOTONIC, the default, or unix.CLOCK_TAI, which needs
// CAP_NET_ADMIN.
func (r *Receiver) SetLaunchClock(clock int32) error {
	if clock != unix.CLOCK_MONOTONIC && clock != unix.CLOCK_TAI {
		return errors.New("launch times are of CLOCK_MONOTONIC (fq) or CLOCK_TAI (etf)")
	}
	r.launchClock = clock
	for i := range r.senders {
		r.senders[i].timed, r.ownSenders[i].timed = false, false
	}
	return nil
}

// Launches returns the statistics of answers with a launch time. It empties the error queues (MSG_ERRQUEUE) of the
// sockets that sent them, including the program's own.
func (r *Receiver) Launches() Launches {
	for i := range r.senders {
		r.collectLaunches(&r.senders[i])
		r.collectLaunches(&r.ownSenders[i])
	}
	return r.launches
}

// reportErrors is SOF_TXTIME_REPORT_ERRORS of linux/net_tstamp.h.
const reportErrors = 1 << 1

// enableLaunch sets SO_TXTIME on a socket if it is not set, and counts a packet with a launch time.
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

// launchTime returns the control message with a launch time.
func launchTime(at int64) []byte {
	out := make([]byte, unix.CmsgSpace(8))
	h := (*unix.Cmsghdr)(unsafe.Pointer(&out[0]))
	h.Level, h.Type = unix.SOL_SOCKET, unix.SCM_TXTIME
	h.SetLen(unix.CmsgLen(8))
	binary.NativeEndian.PutUint64(out[unix.CmsgLen(0):], uint64(at))
	return out
}

// collectLaunches counts the packets that etf reports as dropped.
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

// isLaunch reports whether a message of an error queue is about a packet with a launch time. The origin is the fifth
// byte of struct sock_extended_err.
func isLaunch(m unix.SocketControlMessage) bool {
	isError := m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_RECVERR ||
		m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_RECVERR
	return isError && len(m.Data) > 4 && m.Data[4] == unix.SO_EE_ORIGIN_TXTIME
}
