// SPDX-License-Identifier: Apache-2.0

// Command flood runs in a container. It immediately sends UDP packets and SYNs to its gateway, and then waits.
package main

import (
	"encoding/binary"
	"encoding/hex"
	"os"
	"strings"
	"syscall"
	"time"
)

const (
	port   = 9999
	rounds = 300
)

func main() {
	to := &syscall.SockaddrInet4{Port: port, Addr: gateway()}
	udp, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM, 0)
	if err != nil {
		panic(err)
	}
	for range rounds {
		_ = syscall.Sendto(udp, []byte("leak"), 0, to)
		if fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK, 0); err == nil {
			_ = syscall.Connect(fd, to)
		}
		time.Sleep(time.Millisecond)
	}
	// The process name shows the test that all packets have been sent.
	_ = os.WriteFile("/proc/self/comm", []byte("flooded"), 0)
	time.Sleep(time.Hour)
}

// gateway returns the gateway of the default route.
func gateway() (out [4]byte) {
	table, err := os.ReadFile("/proc/net/route")
	if err != nil {
		panic(err)
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == "00000000" {
			if b, err := hex.DecodeString(f[2]); err == nil && len(b) == len(out) {
				binary.LittleEndian.PutUint32(out[:], binary.BigEndian.Uint32(b))
			}
		}
	}
	return out
}
