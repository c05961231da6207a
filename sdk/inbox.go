// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const (
	maxDescriptors = 253  // SCM_MAX_FD
	maxClosed      = 1000 // ifindexes in a message
	mapsWait       = 5 * time.Second
)

// inbox receives the maps of map sets, packet sockets, and connections of clients.
type inbox struct {
	conn    *net.UnixConn
	packets *injectors
	clients func(id uint64, conn *net.UnixConn) // takes over a connection

	mu      sync.Mutex
	maps    map[string]Maps
	arrived chan struct{} // closed and replaced at each arrival
	err     error
}

func newInbox(conn *net.UnixConn, clients func(uint64, *net.UnixConn)) *inbox {
	return &inbox{conn: conn, packets: newInjectors(), clients: clients, maps: map[string]Maps{},
		arrived: make(chan struct{})}
}

// run receives messages until the peer closes the socket.
func (b *inbox) run() {
	for {
		message, fds, err := receiveMessage(b.conn)
		var maps Maps
		if err == nil && message.MapSet != "" {
			maps, err = openMaps(message.Maps, fds)
		} else if err == nil && message.Client != 0 {
			err = b.takeClient(message.Client, fds)
		} else if err == nil {
			err = b.takePackets(message, fds)
		}
		b.mu.Lock()
		if err != nil {
			b.err = err
		} else if message.MapSet != "" {
			closeMaps(b.maps[message.MapSet])
			b.maps[message.MapSet] = maps
		}
		close(b.arrived)
		b.arrived = make(chan struct{})
		b.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// get waits for the maps of a map set, whose message may arrive slightly after the request.
func (b *inbox) get(ctx context.Context, mapSet string) (Maps, error) {
	ctx, cancel := context.WithTimeout(ctx, mapsWait)
	defer cancel()
	for {
		b.mu.Lock()
		maps, ok := b.maps[mapSet]
		arrived, err := b.arrived, b.err
		b.mu.Unlock()
		if ok {
			return maps, nil
		}
		if err != nil {
			return nil, fmt.Errorf("maps of map set %s: %w", mapSet, err)
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, fmt.Errorf("maps of map set %s did not arrive", mapSet)
		}
	}
}

// drop closes the maps of a map set.
func (b *inbox) drop(mapSet string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	closeMaps(b.maps[mapSet])
	delete(b.maps, mapSet)
}

func (b *inbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, maps := range b.maps {
		closeMaps(maps)
	}
	b.maps = map[string]Maps{}
	b.packets.close()
}

func closeMaps(maps Maps) {
	for _, m := range maps {
		m.Close()
	}
}

// SendMaps sends the maps of a map set. The caller keeps ownership of them.
func SendMaps(conn *net.UnixConn, mapSet string, maps Maps) error {
	message := MapsMessage{MapSet: mapSet, Maps: []string{}}
	var fds []int
	for name, m := range maps {
		message.Maps = append(message.Maps, name)
		fds = append(fds, m.FD())
	}
	if len(fds) > maxDescriptors {
		return fmt.Errorf("%d maps; at most %d can be handed over", len(fds), maxDescriptors)
	}
	return sendMessage(conn, message, fds)
}

// takePackets takes ownership of new packet sockets, after closing the removed ones: an ifindex may be reused.
func (b *inbox) takePackets(message MapsMessage, fds []int) error {
	for _, ifindex := range message.Closed {
		b.packets.remove(ifindex)
	}
	if len(message.Inject) != len(fds) {
		closeAll(fds)
		return fmt.Errorf("%d interfaces for %d packet sockets", len(message.Inject), len(fds))
	}
	for i, ifindex := range message.Inject {
		b.packets.put(ifindex, fds[i])
	}
	return nil
}

// SendPackets sends packet sockets by ifindex, and the ifindexes whose older sockets the control plane closes first.
// The caller keeps ownership of the sockets.
func SendPackets(conn *net.UnixConn, sockets map[uint32]int, closed []uint32) error {
	for {
		message := MapsMessage{Closed: closed[:min(len(closed), maxClosed)]}
		closed = closed[len(message.Closed):]
		var fds []int
		for ifindex, fd := range sockets {
			if len(fds) == maxDescriptors || len(closed) > 0 {
				break
			}
			message.Inject, fds = append(message.Inject, ifindex), append(fds, fd)
			delete(sockets, ifindex)
		}
		if err := sendMessage(conn, message, fds); err != nil || len(sockets)+len(closed) == 0 {
			return err
		}
	}
}

// takeClient takes ownership of a program's connection.
func (b *inbox) takeClient(id uint64, fds []int) error {
	if len(fds) != 1 {
		closeAll(fds)
		return fmt.Errorf("%d descriptors for a client, not 1", len(fds))
	}
	file := os.NewFile(uintptr(fds[0]), "client")
	defer file.Close()
	conn, err := unixConn(file)
	if err != nil {
		return err
	}
	b.clients(id, conn)
	return nil
}

// SendClient passes on a program's connection. The caller keeps ownership of it.
func SendClient(conn *net.UnixConn, id uint64, fd int) error {
	return sendMessage(conn, MapsMessage{Client: id}, []int{fd})
}

func sendMessage(conn *net.UnixConn, message MapsMessage, fds []int) error {
	data, err := json.Marshal(message)
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err = conn.WriteMsgUnix(data, rights, nil)
	return err
}

func receiveMessage(conn *net.UnixConn) (MapsMessage, []int, error) {
	var message MapsMessage
	fds, err := receiveJSON(conn, maxDescriptors, &message)
	if err != nil {
		closeAll(fds)
		return message, nil, err
	}
	return message, fds, nil
}

// receiveJSON receives one message and its descriptors, which may also be returned together with an error. The buffer
// is allocated only when there is a message: a control plane spends most of its life waiting for the next.
func receiveJSON(conn *net.UnixConn, maxFDs int, message any) ([]int, error) {
	size, err := nextSize(conn)
	if err != nil {
		return nil, err
	}
	if size == 0 {
		return nil, errors.New("the agent has closed the connection")
	}
	data, rights := make([]byte, size), make([]byte, unix.CmsgSpace(4*maxFDs))
	n, rn, _, _, err := conn.ReadMsgUnix(data, rights)
	if err != nil {
		return nil, err
	}
	fds, err := descriptors(rights[:rn])
	if err == nil {
		err = json.Unmarshal(data[:n], message)
	}
	return fds, err
}

// nextSize waits for a message and returns its size in bytes: 0 at the end of the connection.
func nextSize(conn *net.UnixConn) (size int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	readErr := raw.Read(func(fd uintptr) bool {
		size, _, _, _, err = unix.Recvmsg(int(fd), nil, nil, unix.MSG_PEEK|unix.MSG_TRUNC)
		return !errors.Is(err, unix.EAGAIN)
	})
	return size, cmp.Or(readErr, err)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// openMaps opens maps from descriptors. It takes ownership of all descriptors, so that none leaks.
func openMaps(names []string, fds []int) (Maps, error) {
	if len(names) != len(fds) {
		closeAll(fds)
		return nil, fmt.Errorf("%d names for %d maps", len(names), len(fds))
	}
	maps := Maps{}
	var err error
	for i, fd := range fds {
		m, mapErr := ebpf.NewMapFromFD(fd)
		if mapErr != nil {
			err = errors.Join(err, mapErr)
			continue
		}
		maps[names[i]] = m
	}
	if err != nil {
		closeMaps(maps)
		return nil, err
	}
	return maps, nil
}

// descriptors returns all descriptors of the control message, also together with an error. The caller must close them.
func descriptors(control []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	var out []int
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return out, err
		}
		out = append(out, fds...)
	}
	return out, nil
}
