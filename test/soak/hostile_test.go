// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
	"github.com/kerb-edge/kerb/internal/seed"
)

const (
	frameGap   = 100 * time.Microsecond // between hostile frames: 10,000 per second
	connectGap = 5 * time.Millisecond   // between hostile connections
)

// attack runs the hostile service until stop: frames of all kinds from CPU 1, real connections, and attempts to escape
// its firewall. The result waits for the end and describes the amounts.
func (p *place) attack(stop <-chan struct{}, virtual bool) func() string {
	p.T.Helper()
	h := p.hosts[0]
	f := &forger{Rand: rand.New(rand.NewPCG(seed.Of(p.T), 1)), place: p, virtual: virtual}
	var work sync.WaitGroup
	var frames, connections int
	work.Go(func() {
		err := h.Do(func() error {
			return traffic.RunOnCPU(1, func() (err error) { frames, err = f.flood(stop); return err })
		})
		if err != nil {
			p.T.Errorf("flood: %v", err)
		}
	})
	work.Go(func() { connections = p.storm(h, stop) })
	work.Go(func() { p.escape(h) })
	return func() string {
		work.Wait()
		return fmt.Sprintf("%d frames, %d connections", frames, connections)
	}
}

// forger creates hostile frames.
type forger struct {
	*rand.Rand
	place   *place
	virtual bool
}

func (f *forger) flood(stop <-chan struct{}) (frames int, err error) {
	link, err := net.InterfaceByName(f.place.hosts[0].Interface())
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	to := &unix.SockaddrLinklayer{Ifindex: link.Index}
	pace := traffic.NewPacer(frameGap)
	for {
		select {
		case <-stop:
			return frames, nil
		default:
		}
		pace.Wait()
		switch err := unix.Sendto(fd, f.frame(link.HardwareAddr), 0, to); {
		case err == nil:
			frames++
		case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENETDOWN): // while it escapes
			if link, err := net.InterfaceByName(f.place.hosts[0].Interface()); err == nil {
				to.Ifindex = link.Index
			}
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINVAL),
			errors.Is(err, unix.EMSGSIZE):
		default:
			return frames, err
		}
	}
}

// frame returns a frame of a kind that audits found to harm others: floods of new flows and of flows of two packets,
// with true and forged sources, to services and virtual addresses; requests for long replies; malformed, tagged and
// non-IP frames.
func (f *forger) frame(own net.HardwareAddr) []byte {
	p := f.place
	victim := p.hosts[1+f.IntN(services-1)]
	src, dst := p.hosts[0].Addr4(), victim.Addr4()
	if f.IntN(2) == 0 {
		src = netip.AddrFrom4([4]byte{10, byte(f.IntN(256)), byte(f.IntN(256)), byte(1 + f.IntN(254))})
	}
	if f.IntN(4) == 0 {
		src = p.hosts[1+f.IntN(services-1)].Addr4()
	}
	if f.virtual && f.IntN(3) == 0 {
		dst = netip.MustParseAddr(vip(1 + f.IntN(services-1)))
	}
	port := []uint16{echoPort, sinkPort, vipPort, coapPort, 7000, 8080, uint16(f.Uint32())}[f.IntN(7)]
	ip := f.ip4(src, dst, port)
	frame := append(append(append([]byte{}, victim.MAC()...), own...), 8, 0)
	switch f.IntN(8) {
	case 0: // tags
		frame = append(frame[:12], 0x81, 0, 0, byte(f.IntN(256)), 8, 0)
	case 1: // not IP
		binary.BigEndian.PutUint16(frame[12:], uint16(f.Uint32()))
	case 2: // damaged, truncated
		for range 1 + f.IntN(4) {
			ip[f.IntN(len(ip))] = byte(f.Uint32())
		}
		ip = ip[:1+f.IntN(len(ip))]
	}
	return append(frame, ip...)
}

// ip4 returns a UDP datagram or a TCP segment with correct lengths and a correct checksum of the IP header; that of the
// payload is sometimes correct.
func (f *forger) ip4(src, dst netip.Addr, port uint16) []byte {
	udp := f.IntN(2) == 0
	l4 := make([]byte, 20)
	binary.BigEndian.PutUint16(l4, uint16(1024+f.IntN(60000)))
	binary.BigEndian.PutUint16(l4[2:], port)
	proto := byte(unix.IPPROTO_TCP)
	if udp {
		proto = unix.IPPROTO_UDP
		binary.BigEndian.PutUint16(l4[4:], uint16(len(l4)))
	} else {
		binary.BigEndian.PutUint32(l4[4:], f.Uint32())
		binary.BigEndian.PutUint32(l4[8:], f.Uint32())
		l4[12], l4[13] = 5<<4, []byte{2, 2, 2, 0x10, 0x11, 4, 0x12, 0, 0x29, byte(f.Uint32())}[f.IntN(10)]
	}
	ip := []byte{0x45, 0, 0, 40, byte(f.Uint32()), byte(f.Uint32()), 0, 0, 64, proto, 0, 0}
	ip = append(append(ip, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(ip[10:], ^sum(0, ip))
	if !udp {
		pseudo := append(append(src.AsSlice(), dst.AsSlice()...), 0, proto, 0, byte(len(l4)))
		binary.BigEndian.PutUint16(l4[16:], ^sum(sum(0, pseudo), l4))
	}
	return append(ip, l4...)
}

// sum returns the ones' complement sum (RFC 1071) of an even number of bytes.
func sum(start uint16, b []byte) uint16 {
	total := uint32(start)
	for i := 0; i < len(b); i += 2 {
		total += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return uint16(total)
}

// storm opens real connections and leaves them in all states: closed, reset, half-closed, idle.
func (p *place) storm(h *netlab.Host, stop <-chan struct{}) (opened int) {
	pace := time.NewTicker(connectGap)
	defer pace.Stop()
	var idle []net.Conn
	for i := 0; ; i++ {
		select {
		case <-stop:
			for _, c := range idle {
				c.Close()
			}
			return opened
		case <-pace.C:
		}
		to := netip.AddrPortFrom(p.hosts[2+2*(i%(services/2-1))].Addr4(), echoPort)
		c, err := dial(h, to)
		if err != nil {
			continue // refused or dropped by modules, as intended
		}
		opened++
		switch tcp := c.(*net.TCPConn); i % 4 {
		case 0:
			_ = tcp.SetLinger(0)
			c.Close()
		case 1:
			_ = tcp.CloseWrite()
			idle = append(idle, c)
		case 2:
			c.Close()
		default:
			idle = append(idle, c)
		}
		if len(idle) > 1000 {
			idle[0].Close()
			idle = idle[1:]
		}
	}
}

func dial(h *netlab.Host, to netip.AddrPort) (c net.Conn, err error) {
	err = h.Do(func() error {
		c, err = (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp4", to.String())
		return err
	})
	return c, err
}

// escape moves the interface of the hostile service into another namespace and back, once in a run.
func (p *place) escape(h *netlab.Host) {
	script := fmt.Sprintf(`unshare -n sh -c 'echo ready; exec sleep 5' & child=$!; sleep 0.5
ip link set %[1]s netns $child && sleep 1 && nsenter --net=/proc/$child/ns/net ip link set %[1]s netns $$
ip addr add %[2]s/24 dev %[1]s; ip link set %[1]s up; wait`, h.Interface(), h.Addr4())
	cmd := h.Command(context.Background(), "sh", "-c", script)
	var exit *exec.ExitError
	if out, err := cmd.CombinedOutput(); err != nil && !errors.As(err, &exit) {
		p.T.Errorf("escape: %v: %s", err, out)
	}
}
