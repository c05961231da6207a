// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

const (
	port       = 80   // at virtual addresses
	targetPort = 8080 // of the servers
	patience   = 30 * time.Second
	bulk       = 4 << 20 // bytes of a long line, sent in segments of the maximum size
)

// serve answers on TCP and UDP, in both families, with the host's name: on TCP first with only the name, then each line
// and each datagram with the name as prefix.
func serve(t *testing.T, h *netlab.Host) {
	t.Helper()
	for _, addr := range []netip.Addr{h.Addr4(), h.Addr6()} {
		at := netip.AddrPortFrom(addr, targetPort)
		err := h.Do(func() error {
			l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
			if err != nil {
				return err
			}
			t.Cleanup(func() { l.Close() })
			go accept(l, h.Name())
			c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			if err != nil {
				return err
			}
			t.Cleanup(func() { c.Close() })
			go echo(c, h.Name())
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func accept(l *net.TCPListener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return // closed
		}
		go func() {
			defer c.Close()
			fmt.Fprintln(c, name)
			lines := bufio.NewScanner(c)
			lines.Buffer(nil, 2*bulk)
			for lines.Scan() {
				fmt.Fprintln(c, name, lines.Text())
			}
		}()
	}
}

func echo(c *net.UDPConn, name string) {
	data := make([]byte, 2000)
	for {
		n, from, err := c.ReadFromUDPAddrPort(data)
		if err != nil {
			return // closed
		}
		_, _ = c.WriteToUDPAddrPort(append([]byte(name+" "), data[:n]...), from)
	}
}

// connection is a connection whose server has sent its name.
type connection struct {
	net.Conn
	*bufio.Reader
	server string
}

func (c *connection) Read(b []byte) (int, error) { return c.Reader.Read(b) }

func dialTCP(from *netlab.Host, to netip.AddrPort) (*connection, error) {
	return dialTCPWithin(from, patience, to)
}

func dialTCPWithin(from *netlab.Host, wait time.Duration, to netip.AddrPort) (*connection, error) {
	return dialTCPBy(from, &net.Dialer{Timeout: wait}, to)
}

func dialTCPBy(from *netlab.Host, dialer *net.Dialer, to netip.AddrPort) (*connection, error) {
	var conn net.Conn
	err := from.Do(func() (err error) {
		conn, err = dialer.Dial("tcp", to.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, Reader: bufio.NewReader(conn)}
	if c.server, err = c.line(); err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *connection) line() (string, error) {
	_ = c.SetDeadline(time.Now().Add(patience))
	text, err := c.ReadString('\n')
	return strings.TrimSuffix(text, "\n"), err
}

// exchange sends a line and checks the reply.
func (c *connection) exchange(text string) error {
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintln(c.Conn, text); err != nil {
		return err
	}
	got, err := c.line()
	if err == nil && got != c.server+" "+text {
		err = fmt.Errorf("%d bytes came back for %d to %s, or others", len(got), len(text), c.server)
	}
	return err
}

func dialUDP(from *netlab.Host, to netip.AddrPort) (c *net.UDPConn, err error) {
	err = from.Do(func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	return c, err
}

// askUDP sends a datagram and returns the name of the server that replied.
func askUDP(c *net.UDPConn, text string, wait time.Duration) (string, error) {
	_ = c.SetDeadline(time.Now().Add(wait))
	if _, err := c.Write([]byte(text)); err != nil {
		return "", err
	}
	data := make([]byte, 2000)
	n, err := c.Read(data)
	name, rest, _ := strings.Cut(string(data[:n]), " ")
	if err == nil && rest != text {
		err = fmt.Errorf("%d bytes came back for %d", len(rest), len(text))
	}
	return name, err
}

// ping sends an ICMP echo request and waits for the reply, which must come from the destination address.
func ping(from *netlab.Host, to netip.Addr, size int) error {
	network, listen, request, proto := "ip4:icmp", "0.0.0.0", icmp.Type(ipv4.ICMPTypeEcho), 1
	reply := icmp.Type(ipv4.ICMPTypeEchoReply)
	if to.Is6() {
		network, listen, request, reply, proto = "ip6:ipv6-icmp", "::", ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply, 58
	}
	var c *icmp.PacketConn
	if err := from.Do(func() (err error) { c, err = icmp.ListenPacket(network, listen); return err }); err != nil {
		return err
	}
	defer c.Close()
	id := int(time.Now().UnixNano()) & 0xffff
	text, err := (&icmp.Message{Type: request, Body: &icmp.Echo{ID: id, Seq: 1, Data: make([]byte, size)}}).Marshal(nil)
	if err != nil {
		return err
	}
	if _, err := c.WriteTo(text, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return err
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	data := make([]byte, 65536)
	for {
		n, peer, err := c.ReadFrom(data)
		if err != nil {
			return fmt.Errorf("ping %s: %w", to, err)
		}
		m, err := icmp.ParseMessage(proto, data[:n])
		if err != nil || m.Type != reply {
			continue
		}
		if e, ok := m.Body.(*icmp.Echo); ok && e.ID == id && len(e.Data) == size && peer.String() == to.String() {
			return nil
		}
	}
}

// retransmissions returns the number of SYNs that a host has retransmitted so far.
func retransmissions(t *testing.T, h *netlab.Host) string {
	t.Helper()
	var text []byte
	if err := h.Do(func() (err error) {
		text,
			err = os.ReadFile("/proc/thread-self/net/netstat")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		names, values := strings.Fields(lines[i]), strings.Fields(lines[i+1])
		for j, name := range names {
			if name == "TCPSynRetrans" {
				return values[j]
			}
		}
	}
	t.Fatal("the kernel does not count SYNs that are sent again")
	return ""
}
