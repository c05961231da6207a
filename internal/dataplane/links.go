// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
)

// linkAge is how long the cached state of a link on an interface is valid after Kerb read or changed it. To read a
// link, the kernel takes the lock of all network configuration (tcx_link_fill_info), for which many processes wait
// while many pods start, and each change needs all links. Changes of a link by other programs are noticed up to this
// much later. Interfaces that vanish, even if their indexes have been reused, and removed pins are noticed immediately.
// Tests replace linkAge.
var linkAge = time.Second

// knownLinks caches links as they were last read or changed. It is safe for concurrent use.
type knownLinks struct {
	mu      sync.Mutex
	by      map[chain.Point]knownLink
	removed *removals // nil: nothing is cached
	count   uint64    // number of times that removed interfaces were read
}

type knownLink struct {
	chain.Attached
	at time.Time
}

// forgetRemoved forgets the links of interfaces that were removed since the last call.
func (k *knownLinks) forgetRemoved() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.removed == nil {
		k.by = nil
		return
	}
	gone, complete := k.removed.read()
	if len(gone) > 0 || !complete {
		k.count++
	}
	if !complete {
		k.by = nil
	}
	for p := range k.by {
		if gone[p.Ifindex] {
			delete(k.by, p)
		}
	}
}

// removals returns a number that changes when forgetRemoved finds removed interfaces.
func (k *knownLinks) removals() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.count
}

// setRead caches a link that was read after removals returned before. If interfaces have been removed since, the link
// may belong to one of them, and is not cached.
func (k *knownLinks) setRead(a chain.Attached, before uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.count == before {
		k.note(a)
	}
}

func (k *knownLinks) get(p chain.Point) (chain.Attached, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	known, ok := k.by[p]
	return known.Attached, ok && time.Since(known.at) < linkAge
}

// set caches a link, unless it is on sockets: those are read each time, without that lock.
func (k *knownLinks) set(a chain.Attached) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.note(a)
}

func (k *knownLinks) note(a chain.Attached) {
	if !a.Point.Side.SeesPackets() || a.Program == 0 {
		delete(k.by, a.Point)
		return
	}
	if k.by == nil {
		k.by = map[chain.Point]knownLink{}
	}
	k.by[a.Point] = knownLink{a, time.Now()}
}

func (k *knownLinks) forget(p chain.Point) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.by, p)
}

func (k *knownLinks) Close() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.removed != nil {
		unix.Close(k.removed.fd)
	}
	k.removed, k.by = nil, nil
}

// removals reports the interfaces that are removed from a network namespace. The kernel queues the message before
// another interface can get the index.
type removals struct{ fd int }

// removalsBuffer holds the messages of some hundred interfaces. The kernel takes memory only for queued messages.
const removalsBuffer = 1 << 20

// openRemovals starts to listen in the network namespace of the calling thread.
func openRemovals() (*removals, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("socket of route netlink: %w", err)
	}
	// A smaller buffer does no harm: lost messages are detected.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, removalsBuffer)
	if err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, onlyRemovals()); err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribe to removed interfaces: %w", err)
	}
	return &removals{fd}, nil
}

// onlyRemovals is a socket filter that passes only RTM_DELLINK: new interfaces cause many more messages.
func onlyRemovals() *unix.SockFprog {
	wire := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.RTM_DELLINK)) // filters load big endian
	code := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 4}, // nlmsg_type
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(wire), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	return &unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}
}

// read returns the interfaces that were removed since the last call. complete is false if there may be more.
func (r *removals) read() (gone map[int]bool, complete bool) {
	gone, complete = map[int]bool{}, true
	head := make([]byte, unix.NLMSG_HDRLEN+unix.SizeofIfInfomsg)
	for {
		n, _, err := unix.Recvfrom(r.fd, head, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return gone, complete
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS): // the kernel drops all others, without another error, until the queue is empty
			complete = false
			continue
		case err != nil || n < len(head):
			return gone, false
		}
		index := head[unix.NLMSG_HDRLEN+4:] // ifi_index
		gone[int(int32(binary.NativeEndian.Uint32(index)))] = true
	}
}

// readLinks lists the links. A link whose interface was removed has a zero ifindex, and is listed with Program 0.
func (d *Dataplane) readLinks() ([]chain.Attached, error) {
	entries, err := os.ReadDir(d.layout.links())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	d.links.forgetRemoved()
	var out []chain.Attached
	for _, e := range entries {
		p, ok := parsePoint(e.Name())
		if !ok {
			continue
		}
		a, known := d.links.get(p)
		if !known {
			before := d.links.removals()
			if a, err = d.readLink(p); err != nil {
				return nil, err
			}
			d.links.setRead(a, before)
		}
		out = append(out, a)
	}
	if !d.tcx {
		more, err := d.readClsact()
		return append(out, more...), err
	}
	return out, nil
}

// Program returns the kernel's id of Kerb's program on a point, read from its pin, which filters of the clsact qdisc do
// not have. It is safe for concurrent use.
func (d *Dataplane) Program(p chain.Point) (uint32, error) {
	if p.Side.Hook() == chain.TC && !d.tcx {
		return 0, errNoPin
	}
	if err := unix.Access(d.layout.link(p), unix.F_OK); err != nil {
		return 0, err
	}
	d.links.forgetRemoved()
	if a, known := d.links.get(p); known {
		return a.Program, nil
	}
	a, err := d.readLink(p) // not cached: a change may attach another program in the meantime
	return a.Program, err
}
