// SPDX-License-Identifier: Apache-2.0

// Package oaktest simulates an Oakestra cluster for tests: a real broker, and test doubles of the root and cluster
// service managers and of NetManager, with the behaviour of release v0.4.411. The doubles are based on recordings of
// the real ones, which tests replay through them.
package oaktest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// Broker is a mosquitto in the network namespace in which NewBroker and Start are called.
type Broker struct {
	t       testing.TB
	address string
	program string
	config  string
	Port    int
	process *exec.Cmd
}

// NewBroker prepares a broker on 127.0.0.1 without starting it. It skips the test if mosquitto is not installed.
func NewBroker(t testing.TB) *Broker {
	t.Helper()
	return NewBrokerAt(t, "127.0.0.1")
}

// NewBrokerAt is NewBroker with another IPv4 address.
func NewBrokerAt(t testing.TB, address string) *Broker {
	t.Helper()
	program, err := exec.LookPath("/usr/sbin/mosquitto")
	if err != nil {
		t.Skip("needs mosquitto")
	}
	b := &Broker{t: t, address: address, program: program, config: filepath.Join(t.TempDir(), "mosquitto.conf"),
		Port: freePort(t, address)}
	text := fmt.Sprintf("listener %d %s\nallow_anonymous true\npersistence false\nlog_dest none\n"+
		"set_tcp_nodelay true\n", b.Port, address)
	if os.Geteuid() == 0 {
		text += "user root\n" // another user may lack permission for the test's directory
	}
	if err := os.WriteFile(b.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Stop)
	return b
}

// freePort returns a free port of an address outside the range of ephemeral ports, so that it stays free while no
// broker runs.
func freePort(t testing.TB, address string) int {
	t.Helper()
	for {
		port := 20000 + rand.IntN(10000)
		l, err := net.Listen("tcp4", net.JoinHostPort(address, fmt.Sprint(port)))
		if err == nil {
			l.Close()
			return port
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Fatal(err)
		}
	}
}

// Start starts the broker and returns when it listens.
func (b *Broker) Start() {
	b.t.Helper()
	b.process = exec.Command(b.program, "-c", b.config)
	if err := b.process.Start(); err != nil {
		b.t.Fatal(err)
	}
	wait.Until(b.t, "the broker listens", func() bool {
		c, err := b.Dial()
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// Stop kills the broker. All connections break.
func (b *Broker) Stop() {
	if b.process != nil {
		_ = b.process.Process.Kill()
		_ = b.process.Wait()
		b.process = nil
	}
}

// Dial connects to the broker.
func (b *Broker) Dial() (net.Conn, error) {
	return net.Dial("tcp4", net.JoinHostPort(b.address, fmt.Sprint(b.Port)))
}

// URL returns the broker's URL for clients.
func (b *Broker) URL() string { return fmt.Sprintf("tcp://%s:%d", b.address, b.Port) }
