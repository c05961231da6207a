// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/netutil"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// Limits of a TCP endpoint. Connections are counted before TLS and before any token, so that a client without
// credentials cannot take the descriptors that the rest of the agent needs.
const (
	MaxConnections           = 256
	MaxConnectionsPerAddress = 16
	HandshakeTimeout         = 5 * time.Second // for the TLS handshake, and for the header of a request
	reportedFor              = time.Minute     // how long a limit that was reached stays in the condition
)

// gate counts the connections of a TCP endpoint.
type gate struct {
	total, perAddress int
	log               *slog.Logger

	mu      sync.Mutex
	open    int
	by      map[netip.Addr]int
	refused uint64
	at      time.Time // when a limit was last reached
	what    string    // which one
	warned  time.Time
	before  []v1alpha1.Condition // for the time of the last transition
}

// LimitConnections bounds the connections of a listener: all of them, and those of one address. Connections above the
// total wait in the kernel's queue; those above the limit of an address are closed at once.
func LimitConnections(l net.Listener, perAddress int) net.Listener {
	total := connectionLimit()
	g := &gate{total: total, perAddress: min(perAddress, total), by: map[netip.Addr]int{}, log: slog.Default()}
	g.condition()
	return &gatedListener{netutil.LimitListener(l, total), g}
}

// connectionLimit leaves three quarters of the process's descriptors to the rest of the agent.
func connectionLimit() int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return MaxConnections
	}
	return int(max(1, min(MaxConnections, files.Cur/4)))
}

type gatedListener struct {
	net.Listener
	gate *gate
}

// Accept returns the next connection whose address is below its limit.
func (l *gatedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := clientOf(c.RemoteAddr().String())
		if l.gate.enter(from) {
			return &gatedConn{Conn: c, leave: sync.OnceFunc(func() { l.gate.leave(from) })}, nil
		}
		_ = c.Close()
	}
}

type gatedConn struct {
	net.Conn
	leave func()
}

func (c *gatedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// clientOf is the address that limits count by: of IPv6 the /64, which one host has to itself.
func clientOf(remote string) netip.Addr {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	addr := at.Addr().Unmap().WithZone("")
	if addr.Is6() {
		addr = netip.PrefixFrom(addr, 64).Masked().Addr()
	}
	return addr
}

func (g *gate) enter(from netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.by[from] >= g.perAddress {
		g.refused++
		g.reached(fmt.Sprintf("%s has %d connections, which is the limit of one address; more are closed",
			from, g.perAddress))
		return false
	}
	g.by[from]++
	g.open++
	if g.open >= g.total {
		g.reached(fmt.Sprintf("%d of %d connections are open; more clients wait", g.open, g.total))
	}
	return true
}

// reached notes and logs that a limit was reached, at most once a minute.
func (g *gate) reached(what string) {
	g.evaluate() // an earlier limit may have passed unnoticed
	g.at, g.what = time.Now(), what
	g.evaluate()
	if time.Since(g.warned) >= reportedFor {
		g.warned = g.at
		g.log.Warn("TCP endpoint is at a connection limit", "reason", what)
	}
}

func (g *gate) leave(from netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
	if g.by[from]--; g.by[from] == 0 {
		delete(g.by, from)
	}
}

// condition reports whether a limit is or was just reached.
func (g *gate) condition() v1alpha1.Condition {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.evaluate()
}

func (g *gate) evaluate() v1alpha1.Condition {
	c := v1alpha1.Condition{Type: "TCPEndpoint", Status: "True", Reason: "BelowLimit",
		Message: fmt.Sprintf("%d of %d connections are open", g.open, g.total)}
	if g.open >= g.total || !g.at.IsZero() && time.Since(g.at) < reportedFor {
		c.Status, c.Reason, c.Message = "False", "AtLimit", g.what
	}
	g.before = v1alpha1.Transition(g.before, []v1alpha1.Condition{c})
	return g.before[0]
}

func (g *gate) counts() (open int, refused uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open, g.refused
}
