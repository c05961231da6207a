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
	why       error         // reason of the end; read only after ended is closed
	process   *process
	send      sync.Mutex
	wrong     string // problem in its last health answer: logged once
}

// starter starts a control plane with its two sockets, which are closed afterwards. newRun adds the rest of the run.
type starter func(module string, listen, maps *os.File) (*process, error)

// process is the process of a run.
type process struct {
	pid   int
	ended chan struct{}
	why   func() error     // after ended
	end   func(why string) // asks it to end, and kills it after a while
	kill  func(why string) // the same for all runs that share the process
}

// newRun creates the sockets of a control plane and starts it.
func newRun(dir, module string, start starter) (*run, error) {
	socket := filepath.Join(dir, rand.Text()[:12]+".sock") // short, because a socket's path is limited to 108 bytes
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	listener.SetUnlinkOnClose(false)
	defer listener.Close() // only the process keeps a copy, so that no client waits for an exited one
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

// mapsPair returns a socket pair for sending map descriptors. SOCK_SEQPACKET preserves message boundaries and reports
// when the peer closes its end.
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

// sendMaps gives up if the process does not read.
func (r *run) sendMaps(mapSet string, maps sdk.Maps) error {
	r.send.Lock()
	defer r.send.Unlock()
	if err := r.maps.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return err
	}
	return sdk.SendMaps(r.maps, mapSet, maps)
}

// sendClient passes on a program's connection, which the caller keeps.
func (r *run) sendClient(id uint64, fd int) error {
	r.send.Lock()
	defer r.send.Unlock()
	if err := r.maps.SetWriteDeadline(time.Now().Add(sendTime)); err != nil {
		return err
	}
	return sdk.SendClient(r.maps, id, fd)
}

// sendPackets sends packet sockets, which the caller keeps.
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
