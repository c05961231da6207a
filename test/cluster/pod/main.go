// SPDX-License-Identifier: Apache-2.0

// Pod runs in the pods of the test cluster, and in their sandboxes: pod pause, or pod flood, flow, ask or answer
// ADDRESS:PORT PACE. The pace is the interval between packets, or connections.
package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) == 4 {
		to := netip.MustParseAddrPort(os.Args[2])
		address := &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
		pace, err := time.ParseDuration(os.Args[3])
		if err != nil {
			panic(err)
		}
		switch os.Args[1] {
		case "answer":
			panic(answer(os.Args[2]))
		case "ask":
			ask(os.Args[2], pace)
		case "flow":
			flow(address, pace)
		}
		flood(address, pace)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGTERM, unix.SIGINT)
	<-end
}

// burst is the number of packets of each kind that a flood first sends at the maximum rate.
const burst = 1000

// flood sends datagrams and SYNs from its first instruction on until it is killed. It prints its address and how many
// of each the kernel has accepted, after the burst and then each second.
func flood(address unix.Sockaddr, pace time.Duration) {
	udp := connect(address)
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

// flow sends numbered datagrams until it is killed.
func flow(address unix.Sockaddr, pace time.Duration) {
	udp := connect(address)
	for number := uint64(0); ; number++ {
		_, _ = unix.Write(udp, binary.BigEndian.AppendUint64(nil, number)) // the receiver detects missing ones
		time.Sleep(pace)
	}
}

func connect(address unix.Sockaddr) int {
	udp, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err == nil {
		err = unix.Connect(udp, address)
	}
	if err != nil {
		panic(err)
	}
	return udp
}

func own(fd int) netip.Addr {
	address, err := unix.Getsockname(fd)
	if err != nil {
		panic(err)
	}
	return netip.AddrFrom4(address.(*unix.SockaddrInet4).Addr)
}

// recent are the sockets of the last SYNs: a socket that is closed immediately sends none while its gateway is not
// resolved.
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
