// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/binary"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// flow is the received datagrams of a pod that numbers them.
type flow struct {
	sync.Mutex
	first, last, received uint64
}

// flow starts a pod on a node, with a module that counts, and returns when its datagrams arrive.
func (c cluster) flow(node string) *flow {
	c.Helper()
	port := flowPort + strings.TrimPrefix(node, "n")
	return c.flowOf(port, c.manifest("flow-"+node, "flow", node, "flow", port))
}

// flowOf starts a pod that sends to a port of the sink.
func (c cluster) flowOf(port, manifest string) *flow {
	c.Helper()
	socket := c.listen(port)
	c.Cleanup(func() { socket.Close() })
	f := &flow{}
	go func() {
		buffer := make([]byte, 64)
		for {
			n, err := socket.Read(buffer)
			if err != nil {
				return
			}
			if n == 8 {
				f.add(binary.BigEndian.Uint64(buffer))
			}
		}
	}()
	if _, err := c.try(manifest, "kubectl", "create", "-f", "-"); err != nil {
		c.Fatal(err)
	}
	f.awaitMore(c)
	return f
}

// listen opens the socket in the namespace of the sink.
func (c cluster) listen(port string) (socket *net.UDPConn) {
	c.Helper()
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var ns *os.File
		if ns, err = os.Open("/run/netns/kerb-sink"); err != nil {
			return
		}
		defer ns.Close()
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return
		}
		var at *net.UDPAddr
		if at, err = net.ResolveUDPAddr("udp4", ":"+port); err != nil {
			return
		}
		socket, err = net.ListenUDP("udp4", at)
	}()
	<-done
	if err != nil {
		c.Fatal(err)
	}
	return socket
}

func (f *flow) add(number uint64) {
	f.Lock()
	defer f.Unlock()
	if f.received == 0 {
		f.first = number
	}
	f.last = max(f.last, number)
	f.received++
}

func (f *flow) arrived() uint64 {
	f.Lock()
	defer f.Unlock()
	return f.received
}

func (f *flow) awaitMore(c cluster) {
	c.Helper()
	before := f.arrived()
	wait.Until(c, "the flow continues", func() bool { return f.arrived() > before+100 })
}

// checkComplete fails if a datagram between the first and the last one is missing.
func (f *flow) checkComplete(c cluster) {
	c.Helper()
	f.awaitMore(c)
	f.Lock()
	defer f.Unlock()
	lost := f.last - f.first + 1 - f.received
	c.Logf("of the flow, %d datagrams have arrived, and %d were lost", f.received, lost)
	if lost > 0 {
		c.Errorf("%d datagrams of a flow were lost", lost)
	}
}
