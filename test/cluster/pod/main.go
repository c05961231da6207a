// SPDX-License-Identifier: Apache-2.0

// Pod is what runs in the pods of the test cluster, and in their sandboxes: pod pause, or pod flood ADDRESS:PORT.
package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "flood" {
		flood(netip.MustParseAddrPort(os.Args[2]))
		return
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGTERM, unix.SIGINT)
	<-end
}

const (
	burst = 1000                 // packets of each kind, as fast as the kernel takes them
	pace  = 5 * time.Millisecond // between the following ones, so that hundreds of pods do not take all of a machine
)

// flood sends datagrams and SYNs from its first instruction on until it is killed. It prints its address and how many
// of each the kernel has taken, after the burst and then each second.
func flood(to netip.AddrPort) {
	address := &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	udp, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err == nil {
		err = unix.Connect(udp, address)
	}
	if err != nil {
		panic(err)
	}
	var datagrams, syns int
	said := time.Time{}
	for {
		if _, err := unix.Write(udp, []byte("leak")); err == nil {
			datagrams++
		}
		if syn(address) {
			syns++
		}
		if min(datagrams, syns) < burst {
			continue
		}
		if time.Since(said) > time.Second {
			said = time.Now()
			fmt.Println(own(udp), datagrams, syns)
		}
		time.Sleep(pace)
	}
}

func own(fd int) netip.Addr {
	address, err := unix.Getsockname(fd)
	if err != nil {
		panic(err)
	}
	return netip.AddrFrom4(address.(*unix.SockaddrInet4).Addr)
}

// recent are the sockets of the last SYNs: one that is closed at once sends none while its gateway is not resolved.
var recent []int

func syn(to unix.Sockaddr) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	if err := unix.Connect(fd, to); err != unix.EINPROGRESS {
		unix.Close(fd)
		return false
	}
	recent = append(recent, fd)
	if len(recent) > 256 {
		unix.Close(recent[0])
		recent = recent[1:]
	}
	return true
}
