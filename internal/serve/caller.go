// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"

	"golang.org/x/sys/unix"
)

type connKey struct{}

// connected is a client's connection, and what its endpoint asks of it.
type connected struct {
	net.Conn
	token bool
}

// connContext keeps the connection for Caller.
func (e Endpoint) connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, connected{c, e.credentials != nil && e.credentials.now.Load().token != ""})
}

// Caller describes the client whose request ctx belongs to, for the log: by the kernel's credentials on a Unix socket,
// by certificate and address on TCP. Without a request it is the agent itself. name returns what a process is known as,
// or an empty string.
func Caller(ctx context.Context, name func(pid int) string) slog.Value {
	c, ok := ctx.Value(connKey{}).(connected)
	if !ok {
		return slog.StringValue("agent")
	}
	conn, secure := c.Conn.(*tls.Conn)
	if !secure {
		return peerOf(c.Conn, name)
	}
	who := "address " + conn.RemoteAddr().String()
	if peers := conn.ConnectionState().PeerCertificates; len(peers) > 0 {
		who = "certificate " + peers[0].Subject.String() + ", " + who
	}
	if c.token {
		who = "token, " + who
	}
	return slog.StringValue(who)
}

// peerOf is the process at the other end of a Unix socket.
func peerOf(c net.Conn, name func(pid int) string) slog.Value {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return slog.StringValue("unknown")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return slog.StringValue("unknown")
	}
	var peer *unix.Ucred
	failed := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if failed != nil || err != nil {
		return slog.StringValue("unknown")
	}
	who := fmt.Sprintf("uid %d pid %d", peer.Uid, peer.Pid)
	if known := name(int(peer.Pid)); known != "" {
		who = known + ", " + who
	}
	return slog.StringValue(who)
}
