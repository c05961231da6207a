// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
)

// TestFirstContact makes services of two workers without earlier contact exchange packets, in both directions. No
// packet is lost: a single datagram is answered, and so is a single SYN. TCP may retransmit later segments that are
// only late.
func TestFirstContact(t *testing.T) {
	m := &model{bed: newBed(t, 2, 0), running: map[string]map[int]*instance{}}
	cgrouptest.PatientSYNs(t, "kerb-oakestra")
	var pairs [][2]*instance
	for i := range 8 {
		var pair [2]*instance
		for n, w := range m.workers {
			name := fmt.Sprintf("first.ns.s%d.%s", i, w.name)
			m.running[name] = map[int]*instance{}
			m.cluster.Create(name)
			m.place(name, 0, w)
			pair[(n+i)%2] = m.running[name][0]
		}
		pairs = append(pairs, pair)
	}
	for i, pair := range pairs {
		from, to := pair[0], pair[1]
		addresses := m.cluster.Addresses(to.service)
		if i/2%2 == 1 {
			addresses = m.cluster.InstanceAddresses(to.service, 0)
		}
		address := addresses[i/4]
		want := answer{to.container.identity, m.cluster.InstanceAddresses(from.service, 0)[i/4]}
		if i%4 == 0 {
			began := time.Now()
			conn, err := from.container.dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			if n := retransmissions(t, conn); n > 0 {
				t.Errorf("tcp %s: %d SYNs sent again", address, n)
			}
			got, err := exchange(conn, "first", 5*time.Second)
			t.Logf("tcp %s: %s", address, time.Since(began))
			if _ = conn.Close(); err != nil || got != want {
				t.Errorf("tcp %s: %v %v, want %v", address, got, err, want)
			}
			continue
		}
		began := time.Now()
		conn, err := from.container.dial("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		got, err := exchange(conn, "first", 5*time.Second)
		t.Logf("udp %s: %s", address, time.Since(began))
		if _ = conn.Close(); err != nil || got != want {
			t.Errorf("udp %s: %v %v, want %v", address, got, err, want)
		}
	}
}

func retransmissions(t *testing.T, conn net.Conn) (n uint32) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var info *unix.TCPInfo
	if failed := raw.Control(func(fd uintptr) {
		info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	return info.Total_retrans
}
