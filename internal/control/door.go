// SPDX-License-Identifier: Apache-2.0

package control

import (
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

// giveWithin is how long after it has connected a program can be given maps. Until then the agent has a copy of its
// connection, as the control plane may not send descriptors.
const giveWithin = 10 * time.Second

// door is the socket that programs find a module by. It is open while a run has started with a generation; in an upgrade,
// who opens it last has it.
type door struct {
	path, group string

	mu       sync.Mutex
	listener *unixlisten.Listener
	last     uint64                   // id of a client
	waiting  map[uint64]*net.UnixConn // those that may be given maps
	accepts  sync.WaitGroup
}

func newDoor(path, group string) *door {
	return &door{path: path, group: group, waiting: map[uint64]*net.UnixConn{}}
}

// openDoor lets programs in, once there is a generation to serve them by. What fails is tried again with the next health check.
func (p *Plane) openDoor(r *run, t *told) {
	if p.door == nil || t.generation == "" {
		return
	}
	if err := p.door.open(r.sendClient); err != nil {
		p.log.Warn("programs cannot connect to the module", "error", err)
	}
}

func (p *Plane) closeDoor() {
	if p.door != nil {
		p.door.close()
	}
}

func (d *door) open(admit func(id uint64, fd int) error) error {
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

func (d *door) close() {
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

func (d *door) accept(l *unixlisten.Listener, admit func(id uint64, fd int) error) {
	for {
		conn, err := l.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no descriptors are left, for example
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

// evict ends the oldest connection: one that was refused, has gone or says nothing, as others are given maps within milliseconds.
func (d *door) evict() {
	id := slices.Min(slices.Collect(maps.Keys(d.waiting)))
	conn := d.waiting[id]
	delete(d.waiting, id)
	_ = errors.Join(conn.CloseRead(), conn.CloseWrite(), conn.Close()) // the control plane's copy ends too
}

// admit hands a connection to the control plane, and keeps a copy for a while.
func (d *door) admit(conn *net.UnixConn, admit func(id uint64, fd int) error) error {
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

// take returns the copy of a client's connection, nil if it is gone.
func (d *door) take(id uint64) *net.UnixConn {
	d.mu.Lock()
	defer d.mu.Unlock()
	conn := d.waiting[id]
	delete(d.waiting, id)
	return conn
}

// give sends a program what the control plane gives it. Where that fails the program's connection ends, and it comes again.
func (p *Plane) give(g sdk.ClientMaps) {
	if p.door == nil {
		return
	}
	conn := p.door.take(g.Client)
	if conn == nil {
		return
	}
	defer conn.Close()
	if err := p.giveMaps(conn, g); err != nil {
		p.log.Warn("cannot serve the request of a program", "error", err)
		_ = errors.Join(conn.CloseRead(), conn.CloseWrite())
	}
}

func (p *Plane) giveMaps(conn *net.UnixConn, g sdk.ClientMaps) error {
	p.sending.Lock()
	defer p.sending.Unlock()
	p.mu.Lock()
	want := p.want
	p.mu.Unlock()
	if want == nil || want.name != g.Generation {
		return fmt.Errorf("generation %s is not the present one", g.Generation)
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
