// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/netdump"
)

// conn is a netlink socket. A NETLINK_ROUTE socket queries its own namespace, and by their ids those of peers. Queries
// by id need CAP_NET_ADMIN; entering the namespaces would need CAP_SYS_ADMIN. It is not safe for concurrent use.
type conn struct {
	fd  int
	seq uint32 // of the last request
}

// openConn opens a socket of NETLINK_ROUTE in the namespace of the calling thread.
func openConn() (*conn, error) {
	c, err := dialNetlink(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open route netlink socket: %w", err)
	}
	// Without strict checking the kernel ignores the target of address dumps.
	if err := unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		c.close()
		return nil, fmt.Errorf("strict netlink requests (Linux 4.20): %w", err)
	}
	return c, nil
}

// dialNetlink opens a socket in the namespace of the calling thread.
func dialNetlink(protocol int) (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, err
	}
	return &conn{fd: fd}, nil
}

func (c *conn) close() { unix.Close(c.fd) }

// execute sends a request and returns the answers of a type, 0 for any. A dump that was interrupted by a concurrent
// change is repeated, because it may have missed or duplicated entries.
func (c *conn) execute(kind, flags int, reply uint16, data ...nl.NetlinkRequestData) ([][]byte, error) {
	return netdump.Complete(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(kind, flags)
		for _, d := range data {
			req.AddData(d)
		}
		c.seq++
		req.Seq = c.seq
		if err := unix.Sendto(c.fd, req.Serialize(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return nil, err
		}
		return c.receive(reply)
	})
}

// buffers hold messages of the kernel, which makes parts of a dump no larger than the client's buffer. The library
// allocates one for each message.
var buffers = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// receive returns the answers to the last request.
func (c *conn) receive(reply uint16) (out [][]byte, err error) {
	buffer := buffers.Get().(*[64 << 10]byte)
	defer buffers.Put(buffer)
	var interrupted error
	for {
		n, from, err := unix.Recvfrom(c.fd, buffer[:], 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if kernel, ok := from.(*unix.SockaddrNetlink); !ok || kernel.Pid != 0 {
			continue // of another process
		}
		msgs, err := syscall.ParseNetlinkMessage(bytes.Clone(buffer[:n]))
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			if m.Header.Seq != c.seq {
				continue // of a request that has failed in between
			}
			if m.Header.Flags&unix.NLM_F_DUMP_INTR != 0 {
				interrupted = netlink.ErrDumpInterrupted
			}
			switch m.Header.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				if err := errorOf(m.Data); err != nil {
					return nil, err
				}
				return out, interrupted
			case reply:
				out = append(out, m.Data)
			default:
				if reply == 0 {
					out = append(out, m.Data)
				}
			}
			if m.Header.Flags&unix.NLM_F_MULTI == 0 {
				return out, interrupted
			}
		}
	}
}

// errorOf returns the error that a message of the type NLMSG_ERROR or NLMSG_DONE has.
func errorOf(data []byte) error {
	if len(data) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(data)); code != 0 {
		return syscall.Errno(-code)
	}
	return nil
}
