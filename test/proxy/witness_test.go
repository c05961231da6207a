// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

func portAt(data []byte) uint16 { return uint16(data[0])<<8 | uint16(data[1]) }

// witness records which host the SYNs of a client reach, including those without a connection.
type witness struct {
	seen sync.Map // syn to the name of the last host that it reached
	port atomic.Uint32
}

// syn is identified by the client's port and the version of IP, 4 or 6.
type syn struct {
	version byte
	port    uint16
}

// onlySYNs accepts TCP packets with SYN, with offsets after the link header: without IPv4 options, and without IPv6
// extension headers.
var onlySYNs = []bpf.Instruction{
	bpf.LoadAbsolute{Off: 0, Size: 1},
	bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: 0xf0},
	bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0x60, SkipTrue: 3},
	bpf.LoadAbsolute{Off: 9, Size: 1},
	bpf.LoadConstant{Dst: bpf.RegX, Val: 20},
	bpf.Jump{Skip: 2},
	bpf.LoadAbsolute{Off: 6, Size: 1},
	bpf.LoadConstant{Dst: bpf.RegX, Val: 40},
	bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 6, SkipTrue: 3},
	bpf.LoadIndirect{Off: 13, Size: 1},
	bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: 2, SkipTrue: 1},
	bpf.RetConstant{Val: 128},
	bpf.RetConstant{Val: 0},
}

// watch records packets to a host.
func (w *witness) watch(t *testing.T, h *netlab.Host) {
	t.Helper()
	var fd int
	err := h.Do(func() (err error) { fd, err = synSocket(h.Interface()); return err })
	if err != nil {
		t.Fatal(err)
	}
	var reading sync.WaitGroup
	var stopped atomic.Bool
	reading.Go(func() {
		for !stopped.Load() {
			w.read(fd, h.Name())
		}
	})
	t.Cleanup(func() {
		stopped.Store(true)
		reading.Wait()
		unix.Close(fd)
	})
}

func synSocket(name string) (int, error) {
	const all = 0x0300 // ETH_P_ALL in network byte order
	code, err := bpf.Assemble(onlySYNs)
	if err != nil {
		return -1, err
	}
	var filter []unix.SockFilter
	for _, i := range code {
		filter = append(filter, unix.SockFilter{Code: i.Op, Jt: i.Jt, Jf: i.Jf, K: i.K})
	}
	at, err := net.InterfaceByName(name)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	wait := unix.NsecToTimeval(int64(200 * time.Millisecond))
	return fd, errors.Join(
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: at.Index}))
}

// read records the next SYN to the server, if one arrives soon.
func (w *witness) read(fd int, host string) {
	data := make([]byte, 128)
	n, _, err := unix.Recvfrom(fd, data, 0)
	if err != nil {
		return
	}
	version, at := data[0]>>4, 20
	if version == 6 {
		at = 40
	}
	if n > at+4 && portAt(data[at+2:]) == targetPort {
		w.seen.Store(syn{version, portAt(data[at:])}, host)
	}
}

// dial opens a connection from a port that was not used recently, and also returns the port.
func (w *witness) dial(from *netlab.Host, to netip.AddrPort) (*connection, uint16, error) {
	const first, many = 10000, 50000
	for {
		own := uint16(first + w.port.Add(1)%many)
		w.seen.Delete(w.synOf(own, to))
		conn, err := dialTCPBy(from, &net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{Port: int(own)}, Control: reuse},
			to)
		if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL) {
			continue
		}
		return conn, own, err
	}
}

// reuse allows ports whose last connection is in TIME-WAIT.
func reuse(_, _ string, c syscall.RawConn) (err error) {
	controlErr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) })
	return errors.Join(err, controlErr)
}

func (w *witness) synOf(own uint16, to netip.AddrPort) syn {
	if to.Addr().Is4() {
		return syn{4, own}
	}
	return syn{6, own}
}

// met returns the last host that a connection's SYN reached, or "" if it reached none.
func (w *witness) met(own uint16, to netip.AddrPort) string {
	for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if host, ok := w.seen.Load(w.synOf(own, to)); ok {
			return host.(string)
		}
		if time.Now().After(end) {
			return ""
		}
	}
}
