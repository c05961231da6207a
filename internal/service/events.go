// SPDX-License-Identifier: Apache-2.0

package service

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// linkGroups are the multicast groups that report links and addresses.
const linkGroups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR

// receiveBuffer holds the events of some thousand new links; more is ENOBUFS.
const receiveBuffer = 4 << 20

// news are the events since the last wait.
type news struct {
	node  bool           // links and addresses of the node, processes, services: rescan
	mount bool           // mounts, and with them namespaces, have changed: rescan if services have moved
	lost  bool           // events were lost: the known state is uncertain
	peers map[int32]bool // ids of other namespaces whose links or addresses changed
}

// affected discards state that the events make stale, and reports whether to rescan.
func (s *scanner) affected(n news) bool {
	if n.lost {
		s.invalidate()
	}
	rescan := n.node || n.lost
	for nsid := range n.peers {
		if _, known := s.inside[nsid]; known {
			delete(s.inside, nsid)
			rescan = true
		}
	}
	return rescan
}

// events waits, in one epoll, for everything that may change a service:
// links and addresses, here and in namespaces that have an id here; mounts,
// since named namespaces are mounts and those send nothing to inotify; the
// ends of processes; and the watcher's own calls.
type events struct {
	epoll   int
	netlink int
	xfrm    int // -1 without XFRM in the kernel
	mounts  int
	wake    *waker
	peers   bool               // events of other namespaces come
	pids    map[string]process // by service
	buf     []byte
}

// process is one that stands for a service.
type process struct {
	pid   int
	fd    int // pidfd, or -1
	ended bool
}

func openEvents(wake *waker) (*events, error) {
	e := &events{epoll: -1, netlink: -1, xfrm: -1, mounts: -1, wake: wake, pids: make(map[string]process),
		buf: make([]byte, 64<<10)}
	if err := e.open(); err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

// open opens what wakes the watcher: netlink for links, IPsec policies where the kernel has them,
// /proc/thread-self/mountinfo, which has an exceptional condition (EPOLLPRI, proc(5)) when a namespace is mounted or
// unmounted, and an eventfd for calls of other goroutines.
func (e *events) open() (err error) {
	if e.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	if e.netlink, err = subscribe(); err != nil {
		return fmt.Errorf("subscribe to link events: %w", err)
	}
	e.peers = capable(unix.CAP_NET_BROADCAST)
	if e.xfrm, err = subscribeXfrm(); err != nil {
		return fmt.Errorf("subscribe to IPsec policy events: %w", err)
	}
	if e.xfrm >= 0 {
		if err := e.add(e.xfrm, unix.EPOLLIN); err != nil {
			return err
		}
	}
	if e.mounts, err = unix.Open("/proc/thread-self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open mountinfo: %w", err)
	}
	if err = e.wake.open(); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	return errors.Join(
		e.add(e.netlink, unix.EPOLLIN),
		e.add(e.mounts, unix.EPOLLPRI),
		e.add(e.wake.fd, unix.EPOLLIN))
}

// capable reports whether the calling thread has a capability.
func capable(capability int) bool {
	var all [2]unix.CapUserData // of version 3: 64 bits
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &all[0])
	return err == nil && all[capability/32].Effective&(1<<(capability%32)) != 0
}

// subscribe opens a socket in the namespace of the calling thread. Events of
// other namespaces need CAP_NET_BROADCAST, and without it do not come; then
// addresses are seen by the periodic scan.
func subscribe() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return -1, err
	}
	// A smaller buffer is no harm: lost events are noticed.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	if err = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_LISTEN_ALL_NSID, 1); err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: linkGroups})
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func (e *events) add(fd int, what uint32) error {
	if err := unix.EpollCtl(e.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: what, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

func (e *events) close() {
	for name := range e.pids {
		e.release(name)
	}
	e.wake.close()
	for _, fd := range []int{e.mounts, e.xfrm, e.netlink, e.epoll} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// wait returns after something happened, or when the time is over.
func (e *events) wait(limit time.Duration) (news, error) {
	ready := make([]unix.EpollEvent, 16)
	n, err := unix.EpollWait(e.epoll, ready, int(max(limit, 0).Milliseconds())+1)
	if errors.Is(err, unix.EINTR) {
		return news{}, nil
	}
	if err != nil {
		return news{}, fmt.Errorf("epoll: %w", err)
	}
	all := news{peers: make(map[int32]bool)}
	for _, ev := range ready[:n] {
		switch fd := int(ev.Fd); fd {
		case e.netlink:
			e.readNetlink(&all)
		case e.xfrm:
			e.drainXfrm()
			all.node = true
		case e.mounts:
			all.mount = true
		case e.wake.fd:
			e.wake.drain()
			all.node = true
		default:
			e.endProcess(fd)
			all.node = true
		}
	}
	return all, nil
}

// readNetlink reads what is there, in bounded portions so that an endless
// stream of events cannot keep a rescan from happening.
func (e *events) readNetlink(all *news) {
	control := make([]byte, 128)
	for range 256 {
		n, cn, _, _, err := unix.Recvmsg(e.netlink, e.buf, control, 0)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if err != nil { // ENOBUFS: events were lost
			all.lost = true
			continue
		}
		msgs, err := syscall.ParseNetlinkMessage(e.buf[:n])
		if err != nil {
			all.lost = true
			continue
		}
		all.add(msgs, origin(control[:cn]))
	}
}

// add sorts messages: what matters of our own namespace is its links (bridge
// ports announce themselves a second time) and addresses, of others all of it.
func (n *news) add(msgs []syscall.NetlinkMessage, nsid int32) {
	if nsid != noNSID {
		n.peers[nsid] = true
		return
	}
	for _, m := range msgs {
		switch m.Header.Type {
		case unix.RTM_NEWADDR, unix.RTM_DELADDR:
			n.node = true
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			n.node = n.node || len(m.Data) > 0 && m.Data[0] == unix.AF_UNSPEC
		}
	}
}

// origin is the id of the namespace that a message came from; messages of our
// own carry none.
func origin(control []byte) int32 {
	cmsgs, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return noNSID
	}
	for _, c := range cmsgs {
		if c.Header.Level == unix.SOL_NETLINK && c.Header.Type == unix.NETLINK_LISTEN_ALL_NSID && len(c.Data) >= 4 {
			return int32(binary.NativeEndian.Uint32(c.Data))
		}
	}
	return noNSID
}

// watchProcesses opens a pidfd for each service that is given by a process,
// so that its end is noticed and a later process with the same id is not
// mistaken for it.
func (e *events) watchProcesses(specs map[string]v1alpha1.ServiceSpec) {
	for name, p := range e.pids {
		if specs[name].PID != p.pid {
			e.release(name)
		}
	}
	for name, spec := range specs {
		if _, known := e.pids[name]; !known && spec.PID > 0 {
			e.pids[name] = e.openProcess(spec.PID)
		}
	}
}

// openProcess does without a pidfd if there is none to be had.
func (e *events) openProcess(pid int) process {
	p := process{pid: pid}
	var err error
	p.fd, err = unix.PidfdOpen(pid, 0) // Linux 5.3
	if errors.Is(err, unix.ESRCH) {
		return process{pid: pid, fd: -1, ended: true}
	}
	if err != nil {
		return process{pid: pid, fd: -1}
	}
	if e.add(p.fd, unix.EPOLLIN) != nil {
		unix.Close(p.fd)
		p.fd = -1
	}
	return p
}

func (e *events) ended(service string) bool { return e.pids[service].ended }

func (e *events) endProcess(fd int) {
	for name, p := range e.pids {
		if p.fd == fd {
			e.release(name)
			e.pids[name] = process{pid: p.pid, fd: -1, ended: true}
		}
	}
}

func (e *events) release(service string) {
	if fd := e.pids[service].fd; fd >= 0 {
		unix.Close(fd) // which also takes it out of the epoll
	}
	delete(e.pids, service)
}

// waker interrupts a wait from other goroutines.
type waker struct {
	mu sync.Mutex
	fd int // eventfd, or -1 while no goroutine waits
}

func (w *waker) open() (err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return err
}

func (w *waker) poke() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd >= 0 {
		// EAGAIN: the counter is full, so the wake-up is pending anyway.
		_, _ = unix.Write(w.fd, binary.NativeEndian.AppendUint64(nil, 1))
	}
}

func (w *waker) drain() {
	_, _ = unix.Read(w.fd, make([]byte, 8))
}

func (w *waker) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd >= 0 {
		unix.Close(w.fd)
	}
	w.fd = -1
}
