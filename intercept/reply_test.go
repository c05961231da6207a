// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// replier answers a packet, and returns "0" or the error.
type replier func(p *Packet) string

// bothReply runs a test with the C library and with this package. port, if not 0, is the port of a socket of the
// program.
func bothReply(t *testing.T, port uint16, test func(t *testing.T, reply replier)) {
	t.Run("C", func(t *testing.T) {
		m := newModule(t)
		args := []string{m.path, "ctrl"}
		if port != 0 {
			args = append(args, fmt.Sprint(port))
		}
		cmd := exec.Command(compileC(t, "reply.c"), args...)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
		lines := bufio.NewReader(out)
		test(t, func(p *Packet) string {
			_, _ = fmt.Fprintf(in, "%d %d %d 0 %x\n", p.L3, p.L4, p.Flags, p.Frame)
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(line)
		})
	})
	t.Run("Go", func(t *testing.T) {
		m := newModule(t)
		r, err := Open(m.path, "ctrl", Options{KeepPriority: true})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if port != 0 {
			own := listen(t, netip.AddrPortFrom(netip.IPv4Unspecified(), port))
			raw, err := own.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			if err := raw.Control(func(fd uintptr) { err = r.UseSocket(int(fd)) }); err != nil {
				t.Fatal(err)
			}
		}
		test(t, func(p *Packet) string {
			if err := r.Reply(p, []byte("answer")); err != nil {
				return err.Error()
			}
			return "0"
		})
	})
}

func listen(t *testing.T, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// from returns a UDP packet as delivered by the kernel part. IPv6 extension headers have 8 bytes each.
func from(src, dst netip.AddrPort, extensions ...byte) *Packet {
	p := &Packet{Frame: make([]byte, 14), L3: 14, Flags: HasL4 | IP4}
	if src.Addr().Is4() {
		ip := make([]byte, 20)
		ip[0], ip[9] = 0x45, 17
		copy(ip[12:], src.Addr().AsSlice())
		copy(ip[16:], dst.Addr().AsSlice())
		p.Frame = append(p.Frame, ip...)
	} else {
		p.Flags = HasL4 | IP6
		ip := make([]byte, 40)
		copy(ip[8:], src.Addr().AsSlice())
		copy(ip[24:], dst.Addr().AsSlice())
		next := &ip[6]
		for _, kind := range extensions {
			*next = kind
			ip = append(ip, make([]byte, 8)...)
			next = &ip[len(ip)-8]
		}
		p.Frame = append(p.Frame, ip...)
		p.Frame[14+6] = 17
		if len(extensions) > 0 {
			p.Frame[14+6] = extensions[0]
			p.Frame[len(p.Frame)-8] = 17
			for i, kind := range extensions[1:] {
				p.Frame[14+40+8*i] = kind
			}
		}
	}
	p.L4 = len(p.Frame)
	p.Frame = binary.BigEndian.AppendUint16(p.Frame, src.Port())
	p.Frame = binary.BigEndian.AppendUint16(p.Frame, dst.Port())
	p.Frame = append(p.Frame, 0, 12, 0, 0, 'a', 's', 'k', '?')
	p.Payload = p.L4 + 8
	return p
}

// free returns a UDP port that is free in both address families.
func free(t *testing.T) uint16 {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

// answerComes receives an answer, whose source must be own.
func answerComes(t *testing.T, at *net.UDPConn, own netip.AddrPort) {
	t.Helper()
	b := make([]byte, 100)
	_ = at.SetReadDeadline(time.Now().Add(30 * time.Second))
	n, from, err := at.ReadFromUDPAddrPort(b)
	from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	if err != nil || string(b[:n]) != "answer" || from != own {
		t.Errorf("%q from %v, %v; want the answer from %v", b[:n], from, err, own)
	}
}

// Answers have the packet's destination, which may be any local address, as source, and its source as destination.
func TestReplies(t *testing.T) {
	for _, addresses := range [][2]string{{"127.0.0.9", "127.0.0.1"}, {"127.0.0.9", "127.1.2.3"}, {"::1", "::1"}} {
		peer := listen(t, netip.AddrPortFrom(netip.MustParseAddr(addresses[0]), 0))
		remote := peer.LocalAddr().(*net.UDPAddr).AddrPort()
		bothReply(t, 0, func(t *testing.T, reply replier) {
			for range 2 { // two ports in turn
				for range 2 {
					own := netip.AddrPortFrom(netip.MustParseAddr(addresses[1]), free(t))
					packets := []*Packet{from(remote, own), from(remote, own)}
					if own.Addr().Is6() {
						packets[1] = from(remote, own, 0, 60, 44)
					}
					for _, p := range packets {
						if said := reply(p); said != "0" {
							t.Fatalf("to %v: %s", own, said)
						}
						answerComes(t, peer, own)
					}
				}
			}
		})
	}
}

// If the program has bound the port, its own socket sends. Without UseSocket, that is an error.
func TestRepliesByTheProgramsSocket(t *testing.T) {
	peer := listen(t, netip.MustParseAddrPort("127.0.0.9:0"))
	own := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), free(t))
	p := from(peer.LocalAddr().(*net.UDPAddr).AddrPort(), own)
	bothReply(t, own.Port(), func(t *testing.T, reply replier) {
		if said := reply(p); said != "0" {
			t.Fatal(said)
		}
		answerComes(t, peer, own)
	})
	server := listen(t, netip.AddrPortFrom(netip.IPv4Unspecified(), own.Port()))
	bothReply(t, 0, func(t *testing.T, reply replier) {
		if said := reply(p); !strings.Contains(said, "in use: give that socket to") {
			t.Error(said)
		}
	})
	_ = server.Close()
}

// Answers from addresses that are not local are rejected, and so are packets other than UDP to the service.
func TestRepliesRefuse(t *testing.T) {
	remote, own := netip.MustParseAddrPort("127.0.0.9:4000"), netip.MustParseAddrPort("127.0.0.3:5005")
	edit := func(p *Packet, change func(p *Packet)) *Packet { change(p); return p }
	six := netip.MustParseAddrPort("[::1]:4000")
	bothReply(t, 0, func(t *testing.T, reply replier) {
		for name, p := range map[string]*Packet{
			"not ours":       from(remote, netip.MustParseAddrPort("192.0.2.1:5005")),
			"not ours, IPv6": from(six, netip.MustParseAddrPort("[2001:db8::1]:5005")),
			"a group":        from(remote, netip.MustParseAddrPort("224.0.0.5:5005")),
			"TCP":            edit(from(remote, own), func(p *Packet) { p.Frame[23] = 6 }),
			"TCP, IPv6":      edit(from(six, six), func(p *Packet) { p.Frame[20] = 6 }),
			"ICMPv6 behind":  edit(from(six, six, 0), func(p *Packet) { p.Frame[54] = 58 }),
			"long extension": edit(from(six, six, 0, 60), func(p *Packet) { p.Frame[55] = 255 }),
			"fragment":       edit(from(remote, own), func(p *Packet) { p.Flags &^= HasL4 }),
			"egress":         edit(from(remote, own), func(p *Packet) { p.Flags |= Egress }),
			"cut off":        edit(from(remote, own), func(p *Packet) { p.Frame = p.Frame[:p.L4+7] }),
			"port 0":         from(netip.AddrPortFrom(remote.Addr(), 0), own),
			"to port 0":      from(remote, netip.AddrPortFrom(own.Addr(), 0)),
		} {
			if said := reply(p); said == "0" {
				t.Errorf("%s: answered", name)
			}
		}
	})
}

// After an answer from another port of the class, the program's socket is still used.
func TestRepliesOfTwoPorts(t *testing.T) {
	peer := listen(t, netip.MustParseAddrPort("127.0.0.9:0"))
	remote := peer.LocalAddr().(*net.UDPAddr).AddrPort()
	own := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), free(t))
	other := netip.AddrPortFrom(own.Addr(), free(t))
	bothReply(t, own.Port(), func(t *testing.T, reply replier) {
		for i, at := range []netip.AddrPort{own, other, own, other} {
			if said := reply(from(remote, at)); said != "0" {
				t.Fatalf("packet %d: %s", i, said)
			}
			answerComes(t, peer, at)
		}
	})
}

// Peers built by the program are answered or rejected; a closed receiver opens no socket.
func TestSendToAnyPeer(t *testing.T) {
	m := newModule(t)
	r, err := Open(m.path, "ctrl", Options{KeepPriority: true})
	if err != nil {
		t.Fatal(err)
	}
	peer := listen(t, netip.MustParseAddrPort("127.0.0.9:0"))
	remote := peer.LocalAddr().(*net.UDPAddr).AddrPort()
	own := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.3"), free(t))
	six := netip.MustParseAddrPort("[::1]:4000")
	mapped := func(a netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr().As16()), a.Port())
	}
	for name, p := range map[string]Peer{
		"none":         {},
		"no remote":    {Own: own},
		"two families": {six, own},
		"likewise":     {own, six},
		"to port 0":    {netip.AddrPortFrom(remote.Addr(), 0), own},
		"from port 0":  {remote, netip.AddrPortFrom(own.Addr(), 0)},
	} {
		if err := r.Send(p, []byte("answer")); err == nil || r.senders != [2]sender{} {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.Send(Peer{mapped(remote), mapped(own)}, []byte("answer")); err != nil {
		t.Error(err)
	}
	answerComes(t, peer, own)
	_ = r.Close()
	if err := r.Send(Peer{remote, own}, nil); !errors.Is(err, net.ErrClosed) || r.senders != [2]sender{} {
		t.Errorf("closed: %v", err)
	}
}
