// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/packet"
)

// Neither a container that sends to an unlimited number of unknown addresses, nor a worker that sends packets with
// forged sources, makes first contacts of others fail: neither of a neighbour of the container, nor of a client on a
// third worker.
func TestFirstContactsDuringFloods(t *testing.T) {
	m := newCluster(t, 3)
	here, hostile, third := m.workers[0], m.workers[1], m.workers[2]
	m.add("app.ns.noisy.test", here)
	m.add("app.ns.quiet.test", here)
	m.add("app.ns.server.test", here)
	noisy, quiet := m.running["app.ns.noisy.test"][0].container, m.running["app.ns.quiet.test"][0].container
	server := m.running["app.ns.server.test"][0]
	done := make(chan struct{})
	var group sync.WaitGroup
	var scanned, forged atomic.Int64
	group.Go(func() {
		if err := noisy.do(func() error { return scan(done, &scanned) }); err != nil {
			t.Error(err)
		}
	})
	tunnel := netip.AddrPortFrom(here.host.Addr4(), 50103)
	group.Go(func() {
		if err := hostile.host.Do(func() error { return forge(done, tunnel, server.addresses[0], &forged) }); err != nil {
			t.Error(err)
		}
	})
	contact := func(name string, from *container, address, own string) {
		got, err := exchange(m.dial(from, "udp", address), uniqueText(), lostAfter)
		if err != nil || got.client != own {
			t.Errorf("%s: %v %v, want it from %s", name, got, err, own)
		}
	}
	for i := range 8 {
		name := fmt.Sprintf("app.ns.far%d.test", i)
		m.add(name, third)
		contact("first datagram of a neighbour of the scan to "+name, quiet, m.cluster.Addresses(name)[0],
			m.cluster.InstanceAddresses("app.ns.quiet.test", 0)[0])
		contact("first datagram of "+name+" to the flooded worker", m.running[name][0].container,
			m.cluster.Addresses("app.ns.server.test")[0], m.cluster.InstanceAddresses(name, 0)[0])
	}
	close(done)
	group.Wait()
	for _, line := range here.drops() {
		t.Log(line)
	}
	t.Logf("%d datagrams to unknown addresses, %d with made-up sources", scanned.Load(), forged.Load())
	if scanned.Load() < 1000 || forged.Load() < 1000 {
		t.Error("these are no floods")
	}
}

// unknownAddress returns the nth of the virtual addresses that the cluster does not assign in tests.
func unknownAddress(n int64) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 30, byte(100 + n>>8%100), byte(n)})
}

// scan sends a datagram to one unknown address after the other. The kernel returns errors for some while ICMP errors
// arrive.
func scan(done chan struct{}, sent *atomic.Int64) error {
	return flood(done, sent, func(conn *net.UDPConn, n int64) error {
		_, _ = conn.WriteToUDPAddrPort([]byte("anybody?"), netip.AddrPortFrom(unknownAddress(n), port))
		return nil
	})
}

// forge sends packets to a tunnel, each with another source.
func forge(done chan struct{}, tunnel netip.AddrPort, to string, sent *atomic.Int64) error {
	return flood(done, sent, func(conn *net.UDPConn, n int64) error {
		fields, err := packet.Parse(fmt.Sprintf("udp %s:1000 > %s:%d", unknownAddress(n), to, port))
		if err != nil {
			return err
		}
		frame, err := fields.Frame()
		if err != nil {
			return err
		}
		_, _ = conn.WriteToUDPAddrPort(frame[14:], tunnel)
		return nil
	})
}

// flood sends ten packets each millisecond.
func flood(done chan struct{}, sent *atomic.Int64, send func(conn *net.UDPConn, n int64) error) error {
	conn, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	pace := time.NewTicker(time.Millisecond)
	defer pace.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-pace.C:
		}
		for range 10 {
			if err := send(conn, sent.Add(1)); err != nil {
				return err
			}
		}
	}
}

// A first packet that the client's kernel handles as a batch of datagrams (UDP_SEGMENT) arrives as separate datagrams.
func TestFirstPacketIsABatch(t *testing.T) {
	m := newCluster(t, 2)
	m.add("app.ns.server.test", m.workers[1])
	m.add("app.ns.client.test", m.workers[0])
	m.add("app.ns.local.test", m.workers[0])
	for _, name := range []string{"app.ns.local.test", "app.ns.server.test"} {
		conn := m.dial(m.running["app.ns.client.test"][0].container, "udp", m.cluster.Addresses(name)[0])
		raw, err := conn.(syscall.Conn).SyscallConn()
		if err == nil {
			failed := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, 1000)
			})
			if failed != nil {
				err = failed
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(make([]byte, 4000)); err != nil {
			t.Fatal(err)
		}
		if n := answers(conn); n != 4 {
			t.Errorf("%s: %d of 4 datagrams of the first batch are answered", name, n)
		}
		if _, err := conn.Write(make([]byte, 4000)); err != nil {
			t.Fatal(err)
		}
		if n := answers(conn); n != 4 {
			t.Errorf("%s: %d of 4 datagrams of the second batch are answered", name, n)
		}
	}
}

// answers counts replies until none arrives any more, or there are four.
func answers(conn net.Conn) (n int) {
	_ = conn.SetReadDeadline(time.Now().Add(lostAfter))
	for buffer := make([]byte, 4096); n < 4; n++ {
		if _, err := conn.Read(buffer); err != nil {
			break
		}
	}
	return n
}
