// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/seed"
)

// Many concurrent connections, with both ends active at the same time: turns, bursts, bidirectional streams,
// half-closes, while thresholds and mode change. Every byte arrives at its receiver, in order, and no program hangs.
func TestIntegrity(t *testing.T) {
	p, first := accelerate(t, usual), seed.Of(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer l.Close()
	var conns, moved atomic.Uint64
	end := time.Now().Add(4 * time.Second)
	var workers sync.WaitGroup
	for worker := range uint64(6) {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(first, worker))
			for time.Now().Before(end) {
				client, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				n, err := talk(client, r)
				if err != nil {
					t.Errorf("client: %v", err)
					return
				}
				conns.Add(1)
				moved.Add(n)
			}
		})
	}
	go serve(t, l)
	r := rand.New(rand.NewPCG(7, 7))
	for time.Now().Before(end) {
		c := usual
		c.Mode = r.Uint32N(3)
		c.PassMessages = 1 + r.Uint32N(16)
		c.LeaveMessages = c.PassMessages + r.Uint32N(100)
		c.Backlog = 1 << (8 + r.Uint32N(12))
		p.configure(c)
		time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond) // interval of changes
	}
	workers.Wait()
	p.empty(t)
	n := p.counts()
	t.Logf("%d connections, %d MB; %+v", conns.Load(), moved.Load()>>20, n)
	if n.Accelerated == 0 || n.Left == 0 {
		t.Errorf("nothing to see: %+v", n)
	}
}

// talk runs the client's side: a few rounds, each announced by a header {kind, bytes}, on a connection that it closes.
func talk(c net.Conn, r *rand.Rand) (moved uint64, err error) {
	defer c.Close()
	for range 1 + r.IntN(60) {
		n, err := exchange(c, r, 20)
		moved += n
		if err != nil {
			return moved, err
		}
	}
	if r.IntN(2) == 0 {
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			return moved, err
		}
		if n, err := c.Read(make([]byte, 10)); n != 0 || err != io.EOF {
			return moved, fmt.Errorf("%d bytes after the end: %w", n, err)
		}
	}
	return moved, nil
}

// exchange runs one round of less than 1<<bits bytes.
func exchange(c net.Conn, r *rand.Rand, bits int) (moved uint64, err error) {
	c.SetDeadline(time.Now().Add(patience))
	kind, size := byte(r.IntN(4)), 1+r.IntN(1<<r.IntN(bits))
	sent := noise(size)
	header := fmt.Appendf(nil, "%d %07d ", kind, size)
	var reader sync.WaitGroup
	var echoErr error
	if kind == 1 { // both directions at the same time
		reader.Go(func() { echoErr = expect(c, sent) })
	}
	err = pieces(c, append(header, sent...), kind, r)
	reader.Wait()
	if kind != 1 && err == nil {
		err = expect(c, sent)
	}
	if err = errors.Join(err, echoErr); err != nil {
		return 0, fmt.Errorf("kind %d, %d bytes: %w", kind, size, err)
	}
	return 2 * uint64(size), nil
}

// pieces sends data in one or several messages.
func pieces(c net.Conn, data []byte, kind byte, r *rand.Rand) error {
	for len(data) > 0 {
		n := len(data)
		if kind != 0 {
			n = min(n, 1+r.IntN(64<<10))
		}
		if kind == 3 {
			n = min(n, max(300, len(data)/100))
		}
		if _, err := c.Write(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

func expect(c net.Conn, want []byte) error {
	got := make([]byte, len(want))
	n, err := io.ReadFull(c, got)
	if err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", n, len(want), err)
	}
	if !bytes.Equal(got, want) {
		return errors.New(difference(got, want))
	}
	return nil
}

// serve echoes data: for kinds 0 and 3 after it has received all, otherwise as it arrives.
func serve(t *testing.T, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			for {
				var kind byte
				var size int
				header := make([]byte, 10)
				if _, err := io.ReadFull(c, header); err == io.EOF {
					return
				}
				if _, err := fmt.Sscanf(string(header), "%d %d ", &kind, &size); err != nil {
					t.Errorf("server: header %q: %v", header, err)
					return
				}
				if err := echo(c, kind, size); err != nil {
					t.Errorf("server: %v", err)
					return
				}
			}
		}()
	}
}

func echo(c net.Conn, kind byte, size int) error {
	c.SetDeadline(time.Now().Add(patience))
	chunk := size
	if kind == 1 || kind == 2 {
		chunk = min(size, 10000)
	}
	data := make([]byte, size)
	for at := 0; at < size; at += chunk {
		part := data[at:min(at+chunk, size)]
		if _, err := io.ReadFull(c, part); err != nil {
			return err
		}
		if kind == 2 {
			continue // the whole answer after the whole request, in pieces
		}
		if _, err := c.Write(part); err != nil {
			return err
		}
	}
	for at := 0; kind == 2 && at < size; at += chunk {
		if _, err := c.Write(data[at:min(at+chunk, size)]); err != nil {
			return err
		}
	}
	return nil
}
