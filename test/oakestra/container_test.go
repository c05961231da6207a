// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// port is the port of all services.
const port = 8000

// container is a container's process with its own network namespace. Its server answers any request with its identity
// and the client's address, by TCP and UDP.
type container struct {
	identity string // of this container: another one of the same instance has another identity
	cmd      *exec.Cmd
	close    []interface{ Close() error }

	mu   sync.Mutex
	open map[net.Conn]bool
}

func (w *worker) container(t *testing.T, identity string) *container {
	t.Helper()
	cmd := w.host.Command(context.Background(), "unshare", "--net", "sleep", "infinity")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &container{identity: identity, cmd: cmd, open: map[net.Conn]bool{}}
	t.Cleanup(c.end)
	wait.Until(t, "a container has a namespace", func() bool {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.pid()))
		return bytes.Equal(comm, []byte("sleep\n"))
	})
	if err := c.do(c.serve); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *container) pid() int { return c.cmd.Process.Pid }

// end kills the container, with all its connections.
func (c *container) end() {
	if c.cmd.ProcessState != nil {
		return
	}
	for _, s := range c.close {
		_ = s.Close()
	}
	c.mu.Lock()
	for conn := range c.open {
		_ = conn.Close()
	}
	c.mu.Unlock()
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// do runs f in the container's namespace.
func (c *container) do(f func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	ns, err := netns.GetFromPath(fmt.Sprintf("/proc/%d/ns/net", c.pid()))
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer ns.Close()
	if err := netns.Set(ns); err != nil {
		return err
	}
	err = f()
	if back := netns.Set(home); back != nil {
		return errors.Join(err, back) // the thread stays locked, and ends with its goroutine
	}
	runtime.UnlockOSThread()
	return err
}

func (c *container) serve() error {
	tcp, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return err
	}
	udp, err := net.ListenUDP("udp", &net.UDPAddr{Port: port})
	if err != nil {
		return errors.Join(err, tcp.Close())
	}
	c.close = append(c.close, tcp, udp)
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			go c.answer(conn)
		}
	}()
	go func() {
		for buffer := make([]byte, 2*len(fragmented)); ; {
			n, from, err := udp.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = udp.WriteToUDPAddrPort(append([]byte(c.heading(from)), buffer[:n]...), from)
			}
		}
	}()
	return nil
}

// heading returns the beginning of an answer.
func (c *container) heading(client netip.AddrPort) string {
	return fmt.Sprintf("%s %s ", c.identity, client.Addr().Unmap())
}

func (c *container) answer(conn net.Conn) {
	c.mu.Lock()
	c.open[conn] = true
	c.mu.Unlock()
	from := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		fmt.Fprintf(conn, "%s%s\n", c.heading(from), lines.Text())
	}
	_ = conn.Close()
	c.mu.Lock()
	delete(c.open, conn)
	c.mu.Unlock()
}

// dial opens a connection from the container, or a UDP socket with one peer.
func (c *container) dial(network, address string) (conn net.Conn, err error) {
	return c.dialPort(network, address, port)
}

func (c *container) dialPort(network, address string, port uint16) (conn net.Conn, err error) {
	return conn, errors.Join(c.do(func() error {
		conn, err = net.DialTimeout(network, netip.AddrPortFrom(netip.MustParseAddr(address), port).String(), 5*time.Second)
		return nil
	}), err)
}

// answer is the identity of a container, and the client's address as seen by it.
type answer struct{ identity, client string }

// exchange sends a text and returns the answer.
func exchange(conn net.Conn, text string, limit time.Duration) (answer, error) {
	_ = conn.SetDeadline(time.Now().Add(limit))
	if _, err := fmt.Fprintf(conn, "%s\n", text); err != nil {
		return answer{}, err
	}
	for buffer := make([]byte, 256+len(text)); ; {
		n, err := conn.Read(buffer)
		if err != nil {
			return answer{}, err
		}
		for line := range strings.Lines(string(buffer[:n])) {
			words := strings.Fields(line)
			if len(words) == 3 && words[2] == text { // not a late answer to another text
				return answer{words[0], words[1]}, nil
			}
		}
	}
}

// fragmented is a text that is longer than a packet.
var fragmented = strings.Repeat("fragment", 500)

// refused reports whether a port without a server is refused, by an ICMP error.
func (c *container) refused(address string) error {
	conn, err := c.dialPort("udp", address, port+1)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	for err == nil { // the first ones may be lost while the client is looked up
		if _, err = conn.Write([]byte("anybody?")); err == nil {
			_ = conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			if _, err = conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
				err = nil
			}
		}
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s by udp %s, no server: %w", c.identity, address, err)
	}
	return nil
}

// reach retries until a service should have been found, and returns the answer.
func (c *container) reach(network, address, text string) (got answer, err error) {
	limit := 300 * time.Millisecond
	if network == "tcp" {
		limit = 5 * time.Second
	}
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); {
		var conn net.Conn
		if conn, err = c.dial(network, address); err == nil {
			got, err = exchange(conn, text, limit)
			_ = conn.Close()
		}
		if err == nil {
			return got, nil
		}
		time.Sleep(20 * time.Millisecond) // until the service is known, an ICMP error arrives immediately
	}
	return answer{}, fmt.Errorf("%s by %s %s: %w", c.identity, network, address, err)
}
