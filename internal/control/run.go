// SPDX-License-Identifier: Apache-2.0

package control

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/sdk"
)

// run is a control plane from one start to its end.
type run struct {
	maps      *net.UnixConn
	transport *http.Transport
	socket    string
	ended     chan struct{} // closed when the process has ended
	why       error         // of the end; read after ended
	process   *process
	send      sync.Mutex
	wrong     string // with its last answer to health: logged once
}

// starter starts a control plane with its two sockets, which are closed afterwards. The run lacks only what newRun
// adds.
type starter func(module string, listen, maps *os.File) (*process, error)

// process is what a run lives in.
type process struct {
	pid   int
	ended chan struct{}
	why   func() error     // after ended
	end   func(why string) // asks it to end, and makes it after a while
	kill  func(why string) // the same for all that shares the process
}

// newRun makes the sockets of a control plane and starts it.
func newRun(dir, module string, start starter) (*run, error) {
	socket := filepath.Join(dir, rand.Text()[:12]+".sock") // short: 108 bytes are all that a socket's path may have
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	defer listener.Close() // the process has the only copy, so that no client waits for one that has exited
	listenFile, err := listener.File()
	if err != nil {
		return nil, errors.Join(err, os.Remove(socket))
	}
	defer listenFile.Close()
	ours, theirs, err := mapsPair()
	if err != nil {
		return nil, errors.Join(err, os.Remove(socket))
	}
	defer theirs.Close()
	p, err := start(module, listenFile, theirs)
	if err != nil {
		ours.Close()
		return nil, errors.Join(err, os.Remove(socket))
	}
	r := &run{maps: ours, socket: socket, ended: make(chan struct{}), process: p}
	r.transport = client.Unix(socket)
	r.transport.DisableKeepAlives, r.transport.MaxIdleConns, r.transport.IdleConnTimeout = false, 6, 30*time.Second
	r.transport.MaxResponseHeaderBytes, r.transport.DisableCompression = 64<<10, true
	go func() {
		<-p.ended
		r.why = p.why()
		r.maps.Close()
		_ = os.Remove(socket)
		r.transport.CloseIdleConnections()
		close(r.ended)
	}()
	return r, nil
}

// mapsPair returns a socket pair on which map descriptors are sent. SOCK_SEQPACKET keeps message boundaries and reports
// the end of the other side.
func mapsPair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "maps")
	file := os.NewFile(uintptr(fds[0]), "maps")
	defer file.Close()
	c, err := net.FileConn(file)
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return c.(*net.UnixConn), theirs, nil
}

const sendTime = 5 * time.Second

// sendMaps gives up on a process that does not read.
func (r *run) sendMaps(mapSet string, maps sdk.Maps) error {
	r.send.Lock()
	defer r.send.Unlock()
	if err := r.maps.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return err
	}
	return sdk.SendMaps(r.maps, mapSet, maps)
}

// sendClient hands a program's connection on, which stays the caller's.
func (r *run) sendClient(id uint64, fd int) error {
	r.send.Lock()
	defer r.send.Unlock()
	if err := r.maps.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return err
	}
	return sdk.SendClient(r.maps, id, fd)
}

// sendPackets sends packet sockets, which stay the caller's.
func (r *run) sendPackets(files map[uint32]*os.File, closed []uint32) error {
	fds := make(map[uint32]int, len(files))
	for ifindex, f := range files {
		fds[ifindex] = int(f.Fd())
	}
	r.send.Lock()
	defer r.send.Unlock()
	if err := r.maps.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return err
	}
	return sdk.SendPackets(r.maps, fds, closed)
}
