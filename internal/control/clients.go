// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/unixlisten"
	"github.com/kerb-edge/kerb/sdk"
)

// giveWithin is how long after connecting a program can be sent maps. For that time the agent keeps a copy of its
// connection, because the control plane must not send descriptors.
const giveWithin = 10 * time.Second

// grantClients makes the agent listen on the module's socket, for programs that the control plane serves.
func grantClients(o *Options, module string) any {
	return newClientListener(o.ModuleSocket(module), o.SocketGroup)
}

// clientListener listens on the module's socket while a run has started with a map set. During an upgrade, the version
// that opened the socket last has it.
type clientListener struct {
	path, group string

	mu       sync.Mutex
	listener *unixlisten.Listener
	last     uint64                   // id of a client
	waiting  map[uint64]*net.UnixConn // connections that may be sent maps
	accepts  sync.WaitGroup
}

func newClientListener(path, group string) *clientListener {
	return &clientListener{path: path, group: group, waiting: map[uint64]*net.UnixConn{}}
}

// maintain starts listening once there is a map set to serve programs with. A failure is retried with the next health
// check.
func (d *clientListener) maintain(p *Supervisor, r *run, _ []sdk.Attachment) {
	if mapSet, _ := p.startedOn(); mapSet == "" {
		return
	}
	if err := d.open(r.sendClient); err != nil {
		p.log.Warn("programs cannot connect to the module", "error", err)
	}
}

func (d *clientListener) serve(_ context.Context, p *Supervisor, _ *run, requests *sdk.Requests) {
	for _, message := range requests.SendMaps {
		d.send(p, message)
	}
}

// open listens, unless it does already.
func (d *clientListener) open(admit func(id uint64, fd int) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.listener != nil {
		return nil
	}
	l, err := unixlisten.Replace("unixpacket", d.path, d.group)
	if err != nil {
		return err
	}
	d.listener = l
	d.accepts.Go(func() { d.accept(l, admit) })
	return nil
}

// end closes the socket and the connections that wait for maps.
func (d *clientListener) end() {
	d.mu.Lock()
	if d.listener != nil {
		_ = d.listener.Close()
		d.listener = nil
	}
	for _, conn := range d.waiting {
		conn.Close()
	}
	clear(d.waiting)
	d.mu.Unlock()
	d.accepts.Wait()
}

// accept passes connections on until the listener is closed. Errors of accept(2) such as EMFILE are temporary: they end
// when descriptors become free.
func (d *clientListener) accept(l *unixlisten.Listener, admit func(id uint64, fd int) error) {
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // for example because no descriptors are left
			time.Sleep(100 * time.Millisecond)
			continue
		}
		if err := d.admit(conn, admit); err != nil {
			conn.Close()
		}
	}
}

// maxWaiting bounds the copies of connections.
const maxWaiting = 64

// evict closes the oldest connection: one that was rejected, is disconnected or idle, because others receive their maps
// within milliseconds.
func (d *clientListener) evict() {
	id := slices.Min(slices.Collect(maps.Keys(d.waiting)))
	conn := d.waiting[id]
	delete(d.waiting, id)
	_ = errors.Join(conn.CloseRead(), conn.CloseWrite(), conn.Close()) // this also ends the control plane's copy
}

// admit passes a connection to the control plane, and keeps a copy for a while.
func (d *clientListener) admit(conn *net.UnixConn, admit func(id uint64, fd int) error) error {
	d.mu.Lock()
	if d.listener == nil {
		d.mu.Unlock()
		return net.ErrClosed
	}
	if len(d.waiting) == maxWaiting {
		d.evict()
	}
	d.last++
	id := d.last
	d.waiting[id] = conn
	d.mu.Unlock()
	time.AfterFunc(giveWithin, func() {
		if c := d.take(id); c != nil {
			c.Close()
		}
	})
	raw, err := conn.SyscallConn()
	if err != nil {
		d.take(id)
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = admit(id, int(fd)) })
	if err = errors.Join(err, sent); err != nil {
		d.take(id)
	}
	return err
}

// take returns the copy of a client's connection, nil if it has expired.
func (d *clientListener) take(id uint64) *net.UnixConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	conn := d.waiting[id]
	delete(d.waiting, id)
	return conn
}

// send sends a message of the control plane to a program. If that fails, the program's connection is closed, and it
// connects again.
func (d *clientListener) send(p *Supervisor, m sdk.ClientMaps) {
	conn := d.take(m.Client)
	if conn == nil {
		return
	}
	defer conn.Close()
	if err := p.sendClientMaps(conn, m); err != nil {
		p.log.Warn("cannot serve the request of a program", "error", err)
		_ = errors.Join(conn.CloseRead(), conn.CloseWrite())
	}
}

// sendClientMaps sends maps, which the control plane names, to a program as SCM_RIGHTS. A program that does not read is
// given a second: the lock delays other maps as well.
func (p *Supervisor) sendClientMaps(conn *net.UnixConn, g sdk.ClientMaps) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	p.mu.Lock()
	want := p.want
	p.mu.Unlock()
	if want == nil || want.name != g.MapSet {
		return fmt.Errorf("map set %s is not the present one", g.MapSet)
	}
	var fds []int
	for _, name := range g.Maps {
		m, err := want.maps.Get(name)
		if err != nil {
			return err
		}
		fds = append(fds, m.FD())
	}
	if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	_, _, err := conn.WriteMsgUnix(g.Message, unix.UnixRights(fds...), nil)
	return err
}
