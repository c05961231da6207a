// SPDX-License-Identifier: Apache-2.0

package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const (
	maxDescriptors = 253 // SCM_MAX_FD
	maxMessage     = 64 << 10
	mapsWait       = 5 * time.Second
)

// inbox receives the maps of generations.
type inbox struct {
	conn *net.UnixConn

	mu      sync.Mutex
	maps    map[string]Maps
	arrived chan struct{} // closed and replaced at each arrival
	err     error
}

func newInbox(conn *net.UnixConn) *inbox {
	return &inbox{conn: conn, maps: map[string]Maps{}, arrived: make(chan struct{})}
}

// run receives until the other side closes.
func (b *inbox) run() {
	for {
		message, maps, err := receiveMaps(b.conn)
		b.mu.Lock()
		if err != nil {
			b.err = err
		} else {
			closeMaps(b.maps[message.Generation])
			b.maps[message.Generation] = maps
		}
		close(b.arrived)
		b.arrived = make(chan struct{})
		b.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// get waits for the maps of a generation: their message may be a moment behind the request.
func (b *inbox) get(ctx context.Context, generation string) (Maps, error) {
	ctx, cancel := context.WithTimeout(ctx, mapsWait)
	defer cancel()
	for {
		b.mu.Lock()
		maps, ok := b.maps[generation]
		arrived, err := b.arrived, b.err
		b.mu.Unlock()
		if ok {
			return maps, nil
		}
		if err != nil {
			return nil, fmt.Errorf("maps of generation %s: %w", generation, err)
		}
		select {
		case <-arrived:
		case <-ctx.Done():
			return nil, fmt.Errorf("maps of generation %s did not arrive", generation)
		}
	}
}

// drop closes the maps of a generation.
func (b *inbox) drop(generation string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	closeMaps(b.maps[generation])
	delete(b.maps, generation)
}

func (b *inbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, maps := range b.maps {
		closeMaps(maps)
	}
	b.maps = map[string]Maps{}
}

func closeMaps(maps Maps) {
	for _, m := range maps {
		m.Close()
	}
}

// SendMaps sends the maps of a generation; they stay the caller's.
func SendMaps(conn *net.UnixConn, generation string, maps Maps) error {
	message := MapsMessage{Generation: generation, Maps: []string{}}
	var fds []int
	for name, m := range maps {
		message.Maps = append(message.Maps, name)
		fds = append(fds, m.FD())
	}
	if len(fds) > maxDescriptors {
		return fmt.Errorf("%d maps; at most %d can be handed over", len(fds), maxDescriptors)
	}
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

func receiveMaps(conn *net.UnixConn) (MapsMessage, Maps, error) {
	data, rights := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxDescriptors))
	var message MapsMessage
	n, rn, _, _, err := conn.ReadMsgUnix(data, rights)
	if err != nil {
		return message, nil, err
	}
	if n == 0 {
		return message, nil, errors.New("the agent has closed the connection")
	}
	fds, err := descriptors(rights[:rn])
	if err != nil {
		return message, nil, err
	}
	maps := Maps{}
	for _, fd := range fds { // all are taken, so that none leaks
		m, mapErr := ebpf.NewMapFromFD(fd)
		if mapErr != nil {
			err = errors.Join(err, mapErr)
			continue
		}
		maps[fmt.Sprint(len(maps))] = m
	}
	if err == nil {
		err = json.Unmarshal(data[:n], &message)
	}
	if err == nil && len(message.Maps) != len(fds) {
		err = fmt.Errorf("%d names for %d maps", len(message.Maps), len(fds))
	}
	if err != nil {
		closeMaps(maps)
		return message, nil, err
	}
	named := Maps{}
	for i, name := range message.Maps {
		named[name] = maps[fmt.Sprint(i)]
	}
	return message, named, nil
}

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
