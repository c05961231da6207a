// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
)

// systemd and `kerb status` learn that the node is ready only after the first reconciliation; the API answers before.
func TestReadyAfterTheFirstReconciliation(t *testing.T) {
	n := newNode(t)
	n.stop()
	path := filepath.Join(openDir(t), "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	n.opened = func(a *Agent) { a.Exclusive.Lock() } // as a change would that takes its time
	n.start(t)
	n.awaitAPI(t)
	if c := n.reconciledCondition(t); c.Status != "False" || c.Reason != "Starting" {
		t.Errorf("before: %+v", c)
	}
	text := make([]byte, 64)
	if got, err := peek(systemd, text); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("systemd was notified before: %q %v", text[:got], err)
	}
	n.Agent.Exclusive.Unlock()
	if err := systemd.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if got, err := systemd.Read(text); err != nil || string(text[:got]) != "READY=1" {
		t.Errorf("%q %v", text[:got], err)
	}
	if c := n.reconciledCondition(t); c.Status != "True" {
		t.Errorf("after: %+v", c)
	}
}

// peek reads what has arrived without waiting.
func peek(c *net.UnixConn, into []byte) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	control := raw.Control(func(fd uintptr) { n, _, err = unix.Recvfrom(int(fd), into, unix.MSG_DONTWAIT|unix.MSG_PEEK) })
	return max(n, 0), errors.Join(control, err)
}

func (n *node) reconciledCondition(t *testing.T) v1.Condition {
	t.Helper()
	st, err := n.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st.Conditions[slices.IndexFunc(st.Conditions, func(c v1.Condition) bool { return c.Type == "Reconciled" })]
}

// awaitAPI waits until the socket answers.
func (n *node) awaitAPI(t *testing.T) {
	t.Helper()
	agent := client.New(n.cfg.Paths.Socket())
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := agent.Call(t.Context(), http.MethodGet, "/v1/status", nil, nil)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
