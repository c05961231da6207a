// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
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

// Before the first reconciliation, which chains run is not known: traces and explanations wait for it.
func TestPacketsAreExplainedOnceChainsAreKnown(t *testing.T) {
	n := newNode(t)
	n.apply(t, n.both(), module("count", "counter", "*", nil))
	packet := v1.ExplainRequest{Service: "web", Packet: fmt.Sprintf("udp %s:4000 > %s:9", n.db.Addr4(), n.web.Addr4())}
	n.stop()
	n.opened = func(a *Agent) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := a.Explain(ctx, packet); !errors.Is(err, context.Canceled) {
			t.Errorf("explain: %v", err)
		}
		for _, last := range []bool{false, true} {
			err := a.Trace(ctx, v1.TraceRequest{Service: "web", Last: last}, nil)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("trace, last packets %t: %v", last, err)
			}
		}
	}
	n.start(t)
	if out, err := n.Explain(t.Context(), packet); err != nil || out.Verdict != "pass" {
		t.Errorf("%+v, %v", out, err)
	}
}
