// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// hosts has a client, the destination of its packets, and the target of the class, in one address family.
type hosts struct {
	t                     *testing.T
	lab                   *netlab.Lab
	client, server, third *netlab.Host
	bridged               bool
}

// newHosts adds three hosts with separate interfaces to a node that routes between them.
func newHosts(t *testing.T, opts netlab.HostOptions) *hosts {
	t.Helper()
	sdktest.NeedRoot(t)
	lab, err := netlab.NewIn("icpg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	h := &hosts{t: t, lab: lab, bridged: !opts.Routed}
	for name, at := range map[string]**netlab.Host{"client": &h.client, "server": &h.server, "third": &h.third} {
		if *at, err = lab.Host(name, opts); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func address(h *netlab.Host, six bool) netip.Addr {
	if six {
		return h.Addr6()
	}
	return h.Addr4()
}

// listen opens a UDP socket in a host.
func (h *hosts) listen(at *netlab.Host, addr netip.Addr, port uint16) *net.UDPConn {
	h.t.Helper()
	var c *net.UDPConn
	if err := at.Do(func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, port)))
		return err
	}); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.Close() })
	return c
}

// expectText waits for a datagram.
func expectText(t *testing.T, at *net.UDPConn, text string, from netip.AddrPort) {
	t.Helper()
	b := make([]byte, 2048)
	_ = at.SetReadDeadline(time.Now().Add(30 * time.Second))
	n, who, err := at.ReadFromUDPAddrPort(b)
	if who = netip.AddrPortFrom(who.Addr().Unmap(), who.Port()); err != nil || string(b[:n]) != text || who != from {
		t.Fatalf("%q from %v, %v; want %q from %v", b[:n], who, err, text, from)
	}
}

// expectNothing fails if a socket has received a datagram.
func expectNothing(t *testing.T, at *net.UDPConn) {
	t.Helper()
	b := make([]byte, 2048)
	_ = at.SetReadDeadline(time.Now().Add(-time.Second)) // pending data is still read
	if n, who, err := at.ReadFromUDPAddrPort(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%q from %v, %v; want nothing", b[:n], who, err)
	}
}

// attachAt attaches the program to an interface of the node.
func (k *kernel) attachAt(lab *netlab.Lab, index int, side chain.Side) {
	k.t.Helper()
	var l link.Link
	err := lab.Node().Do(func() (err error) {
		if side == chain.OnXDP {
			l, err = link.AttachXDP(link.XDPOptions{Interface: index, Program: k.prog, Flags: link.XDPDriverMode})
			return err
		}
		at := map[chain.Side]ebpf.AttachType{chain.OnTCEgress: ebpf.AttachTCXEgress, chain.OnTCIngress: ebpf.AttachTCXIngress}
		l, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: k.prog, Attach: at[side]})
		return err
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		k.t.Skip(err) // TCX: Linux 6.6
	}
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { l.Close() })
}

// takesXDP attaches an XDP program to the peer of a host's interface, which redirected frames require.
func takesXDP(t *testing.T, h *netlab.Host) {
	t.Helper()
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pass.Close() })
	if err := h.Do(func() error {
		inner, err := net.InterfaceByName(h.Interface())
		if err != nil {
			return err
		}
		l, err := link.AttachXDP(link.XDPOptions{Interface: inner.Index, Program: pass, Flags: link.XDPDriverMode})
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// routed returns the number of packets that the node's network stack has forwarded.
func (h *hosts) routed(six bool) int {
	h.t.Helper()
	var text []byte
	file := map[bool]string{false: "/proc/thread-self/net/snmp", true: "/proc/thread-self/net/snmp6"}[six]
	if err := h.lab.Node().Do(func() (err error) { text, err = os.ReadFile(file); return err }); err != nil {
		h.t.Fatal(err)
	}
	fields := strings.Fields(string(text))
	at := slices.Index(fields, "Ip6OutForwDatagrams") + 1
	if !six { // a line of names, then a line of values
		at = slices.Index(fields[1:], "Ip:") + 1 + slices.Index(fields, "ForwDatagrams")
	}
	n, err := strconv.Atoi(fields[at])
	if err != nil {
		h.t.Fatalf("%s: %v", file, err)
	}
	return n
}

// Packets of a class reach the target host with their sender's address, through real interfaces; others reach their
// destination. On TC the node resolves the neighbour itself; on XDP its stack forwards the first packet, and all
// packets if the class has no interface.
func TestForwardLive(t *testing.T) {
	for _, six := range []bool{false, true} {
		for _, c := range []struct {
			name    string
			side    chain.Side
			named   bool
			by      string // host of the program's interface
			bridged bool
		}{
			{"TC, to a service", chain.OnTCEgress, false, "server", true},
			{"TC, to a service, interface", chain.OnTCEgress, true, "server", false},
			{"TC, from a network", chain.OnTCIngress, false, "client", false},
			{"XDP, from a network", chain.OnXDP, false, "client", false},
			{"XDP, interface", chain.OnXDP, true, "client", false},
		} {
			t.Run(fmt.Sprintf("%s, IPv%d", c.name, map[bool]int{false: 4, true: 6}[six]), func(t *testing.T) {
				h := newHosts(t, netlab.HostOptions{Routed: !c.bridged, TxChecksumOff: c.side == chain.OnXDP})
				target := fmt.Sprintf(`"to": %q`, netip.AddrPortFrom(address(h.third, six), 7001))
				if c.named {
					target += `, "interface": "out"`
				}
				k := loadOn(t, c.side, chain.Ingress, forwards(udpOnly+`, "ports": [5005]`, target))
				k.exits(map[string]int{"out": h.third.OuterIndex()})
				at := h.server
				if c.by == "client" {
					at = h.client
				}
				if c.side == chain.OnXDP {
					takesXDP(t, h.client) // replies to it need it, too
					takesXDP(t, h.third)
				}
				k.attachAt(h.lab, at.OuterIndex(), c.side)
				// packets at the interface of a service have been routed
				h.tryForward(k, six, c.bridged || c.by == "client" && (c.side != chain.OnXDP || c.named))
			})
		}
	}
}

// tryForward sends packets of the class and others alternately. direct: the node's stack forwards at most the first one
// of the class.
func (h *hosts) tryForward(k *kernel, six, direct bool) {
	t := h.t
	t.Helper()
	client, server := address(h.client, six), address(h.server, six)
	sender := h.listen(h.client, client, 4000)
	unwanted, other := h.listen(h.server, server, 5005), h.listen(h.server, server, 5006)
	target := h.listen(h.third, address(h.third, six), 7001)
	from := netip.AddrPortFrom(client, 4000)
	const rounds = 5
	before := 0
	for i := range rounds {
		for port, at := range map[uint16]*net.UDPConn{5005: target, 5006: other} {
			text := fmt.Sprintf("round %d to port %d", i, port)
			if _, err := sender.WriteToUDPAddrPort([]byte(text), netip.AddrPortFrom(server, port)); err != nil {
				t.Fatal(err)
			}
			expectText(t, at, text, from)
		}
		if i == 0 {
			before = h.routed(six)
		}
	}
	expectNothing(t, unwanted)
	if r := k.report("on"); r.Packets != rounds || r.Forwarded != rounds || len(r.Unforwarded) > 0 {
		t.Errorf("%+v", r)
	}
	// packets without a class are forwarded by the stack unless the hosts are on one bridge
	others := rounds - 1
	if h.bridged {
		others = 0
	}
	if !direct {
		others += rounds - 1
	}
	if n := h.routed(six) - before; n != others {
		t.Errorf("the stack has forwarded %d packets, want %d", n, others)
	}
}
