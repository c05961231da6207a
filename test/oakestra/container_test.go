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
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// port is where all services listen.
const port = 8000

// container is what a container runtime starts: a process with a network namespace of its own. Its server answers
// whatever it gets with its identity, by TCP and UDP.
type container struct {
	identity string // of this container: another one of the same instance has another one
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

// end is the death of the container, with all its connections.
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
		for buffer := make([]byte, 128); ; {
			n, from, err := udp.ReadFromUDPAddrPort(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = udp.WriteToUDPAddrPort(append([]byte(c.identity+" "), buffer[:n]...), from)
			}
		}
	}()
	return nil
}

func (c *container) answer(conn net.Conn) {
	c.mu.Lock()
	c.open[conn] = true
	c.mu.Unlock()
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		fmt.Fprintf(conn, "%s %s\n", c.identity, lines.Text())
	}
	_ = conn.Close()
	c.mu.Lock()
	delete(c.open, conn)
	c.mu.Unlock()
}

// dial opens a connection from the container, or a UDP socket that has one peer.
func (c *container) dial(network, address string) (conn net.Conn, err error) {
	return conn, errors.Join(c.do(func() error {
		conn, err = net.DialTimeout(network, netip.AddrPortFrom(netip.MustParseAddr(address), port).String(), 5*time.Second)
		return nil
	}), err)
}

// exchange sends a text and returns the identity of the container that has answered.
func exchange(conn net.Conn, text string, limit time.Duration) (string, error) {
	_ = conn.SetDeadline(time.Now().Add(limit))
	if _, err := fmt.Fprintf(conn, "%s\n", text); err != nil {
		return "", err
	}
	for buffer := make([]byte, 256); ; {
		n, err := conn.Read(buffer)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(string(buffer[:n])) {
			identity, echo, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			if echo == text { // not a late one to another text
				return identity, nil
			}
		}
	}
}

// reach tries for as long as a service may take to be found, and returns who answers.
func (c *container) reach(network, address string) (identity string, err error) {
	limit := 300 * time.Millisecond
	if network == "tcp" {
		limit = 5 * time.Second
	}
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); {
		var conn net.Conn
		if conn, err = c.dial(network, address); err == nil {
			identity, err = exchange(conn, "reach", limit)
			_ = conn.Close()
		}
		if err == nil {
			return identity, nil
		}
		time.Sleep(20 * time.Millisecond) // an ICMP error comes at once, until the service is known
	}
	return "", fmt.Errorf("%s by %s %s: %w", c.identity, network, address, err)
}
