// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

// ErrNamespaceUnreachable is returned for a service that is registered by its interface if no process and no path
// refers to the namespace of the interface's peer.
var ErrNamespaceUnreachable = errors.New("cannot open its network namespace (no process is in it, and it is not " +
	"mounted); register the service by netns or pid")

// Packets opens packet sockets inside services, which Of returns by name.
type Packets struct {
	Of func(name string) (v1alpha1.ServiceSpec, State)
}

// Open opens one inside the service of an attachment.
func (p Packets) Open(i sdk.Attachment) (*os.File, error) {
	spec, state := p.Of(i.Service)
	for _, l := range state.Links {
		if l.Ifindex == int(i.Ifindex) {
			return OpenPacket(spec, l)
		}
	}
	return nil, errors.New("the interface no longer exists")
}

// Ended are the attachments whose namespaces have ended but for packet sockets.
func (Packets) Ended(list []sdk.Attachment) []uint32 {
	var indexes []uint32
	for _, i := range list {
		indexes = append(indexes, i.Ifindex)
	}
	return OrphanedNamespaces(indexes)
}

// OpenPacket opens a packet socket inside a service, bound to the other end of one of its links: a frame written to it
// is as if the service had sent it. Nothing can ever be received by it. It needs CAP_SYS_ADMIN to enter the namespace
// and CAP_NET_RAW there, and keeps the namespace alive while it is open.
func OpenPacket(spec v1alpha1.ServiceSpec, link Link) (*os.File, error) {
	if link.PeerIndex == 0 {
		return nil, fmt.Errorf("%s: the interface inside the service is not known", link.Name)
	}
	ns, err := openNamespaceOf(spec, link)
	if err != nil {
		return nil, err
	}
	defer unix.Close(ns)
	fd := -1
	err = enter(ns, func() (err error) {
		fd, err = packetSocket(link)
		return err
	})
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("%s: %w: the agent needs CAP_SYS_ADMIN and CAP_NET_RAW to send in the name of services",
			link.Name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", link.Name, err)
	}
	return os.NewFile(uintptr(fd), "packet "+link.Name), nil
}

// openNamespaceOf returns a descriptor of the network namespace of a service: the one that its spec names, or else the
// one in which the peer of its interface is. The caller closes it. ErrNamespaceUnreachable if no file on this node
// leads there.
func openNamespaceOf(spec v1alpha1.ServiceSpec, link Link) (int, error) {
	switch {
	case spec.Netns != "":
		return openNamespace(spec.Netns)
	case spec.PID != 0:
		return openNamespace(fmt.Sprintf("/proc/%d/ns/net", spec.PID))
	}
	c, err := openConn()
	if err != nil {
		return -1, err
	}
	defer c.close()
	nsid, err := c.peerOf(link.Ifindex)
	if err != nil || nsid == noNSID {
		return -1, errors.Join(err, fmt.Errorf("%s: %w", link.Name, ErrNamespaceUnreachable))
	}
	found := -1
	c.eachNamespace(func(id int32, fd int) bool {
		if id != nsid {
			return true
		}
		found, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return false
	})
	if found < 0 {
		return -1, errors.Join(err, fmt.Errorf("%s: %w", link.Name, ErrNamespaceUnreachable))
	}
	return found, nil
}

// OrphanedNamespaces returns those interfaces whose peer is in a namespace without processes and mounts, which only
// packet sockets keep alive.
func OrphanedNamespaces(ifindexes []uint32) []uint32 {
	if len(ifindexes) == 0 {
		return nil
	}
	c, err := openConn()
	if err != nil {
		return nil // examined again later
	}
	defer c.close()
	held := map[int32]bool{}
	c.eachNamespace(func(id int32, _ int) bool { held[id] = true; return true })
	var out []uint32
	for _, ifindex := range ifindexes {
		if nsid, err := c.peerOf(int(ifindex)); err == nil && !held[nsid] {
			out = append(out, ifindex)
		}
	}
	return out
}

// peerOf is the id of the namespace that the other end of a link is in.
func (c *conn) peerOf(ifindex int) (int32, error) {
	l, err := c.link(ifindex)
	return l.peerNSID, err
}

// eachNamespace visits the network namespaces that processes are in or files hold and that have an id here, each once,
// until visit returns false.
func (c *conn) eachNamespace(visit func(nsid int32, fd int) bool) {
	seen := map[nsKey]bool{}
	paths, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, path := range append(paths, heldNamespaces()...) {
		key, err := nsKeyAt(path)
		if err != nil || seen[key] {
			continue // already gone, or in use by another process
		}
		seen[key] = true
		fd, err := openNamespace(path)
		if err != nil {
			continue
		}
		nsid, err := c.nsidOf(unix.NETNSA_FD, fd)
		more := err != nil || nsid == noNSID || visit(nsid, fd)
		unix.Close(fd)
		if !more {
			return
		}
	}
}

// heldNamespaces are the paths at which namespaces are mounted, as ip netns does.
func heldNamespaces() []string {
	data, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil
	}
	var out []string
	for line := range bytes.Lines(data) {
		before, after, _ := strings.Cut(string(line), " - ")
		if fields := strings.Fields(before); strings.HasPrefix(after, "nsfs ") && len(fields) > 4 {
			out = append(out, fields[4])
		}
	}
	return out
}

// enter runs do in another network namespace, on a thread of its own if that cannot come back.
func enter(ns int, do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		own, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			done <- &fs.PathError{Op: "open", Path: "/proc/thread-self/ns/net", Err: err}
			return
		}
		defer unix.Close(own)
		if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("enter the network namespace: %w", err)
			return
		}
		result := do()
		if unix.Setns(own, unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		} // else the thread ends with the goroutine
		done <- result
	}()
	return <-done
}

// packetSocket has no protocol, and so receives nothing; and a locked filter, so that it never will. What is bound must
// be what was found: numbers of interfaces are used again by other namespaces.
func packetSocket(link Link) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("packet socket: %w", err)
	}
	if err = errors.Join(dropAll(fd), bindTo(fd, link)); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func dropAll(fd int) error {
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	program := unix.SockFprog{Len: 1, Filter: (*unix.SockFilter)(unsafe.Pointer(&drop))}
	err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &program)
	return errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_LOCK_FILTER, 1))
}

// bindTo binds a packet socket to the interface inside the service. Indices are used again: the address, which the
// kernel reports for what was bound, shows that it is still the same interface.
func bindTo(fd int, link Link) error {
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: link.PeerIndex}); err != nil {
		return fmt.Errorf("bind packet socket: %w", err)
	}
	bound, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	at, ok := bound.(*unix.SockaddrLinklayer)
	if !ok || !bytes.Equal(at.Addr[:at.Halen], link.PeerMAC) {
		return errors.New("the interface inside the service has just been replaced")
	}
	return nil
}
