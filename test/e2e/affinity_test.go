// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// serveName accepts connections on a port of a host and sends each the name of the host.
func serveName(t *testing.T, h *netlab.Host, name string, port uint16) {
	t.Helper()
	var server net.Listener
	if err := h.Do(func() (err error) {
		server, err = net.Listen("tcp4", netip.AddrPortFrom(h.Addr4(), port).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, name) // a client that misses it fails the test
			c.Close()
		}
	}()
}

// tryName connects to an address and returns the name that the server sends.
func tryName(from *netlab.Host, to string) (string, error) {
	var c net.Conn
	if err := from.Do(func() (err error) {
		c, err = net.DialTimeout("tcp4", to, 30*time.Second)
		return err
	}); err != nil {
		return "", err
	}
	defer c.Close()
	name, err := io.ReadAll(c)
	return string(name), err
}

// askName is tryName, and fails the test on an error.
func askName(t *testing.T, from *netlab.Host, to string) string {
	t.Helper()
	name, err := tryName(from, to)
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// Clients keep their instance while the agent is killed, the proxy gets a new program, and its table another size.
func TestAffinityOutlivesAgentAndPrograms(t *testing.T) {
	n := newRunningNode(t)
	store := v1.VirtualService{TypeMeta: v1.TypeMeta{APIVersion: v1.APIVersion, Kind: v1.KindVirtualService},
		Metadata: v1.ObjectMeta{Name: "store"}, Spec: v1.VirtualServiceSpec{
			Addresses: []v1.VirtualAddress{{Address: "10.30.0.9", AffinityTimeout: "3h"}, {Address: "10.30.0.10"}},
			Ports:     []v1.VirtualPort{{Port: 80, TargetPort: 8080}}}}
	for i := range 3 {
		name := fmt.Sprintf("store%d", i)
		h := n.Host(name)
		serveName(t, h, name, 8080)
		store.Spec.Instances = append(store.Spec.Instances,
			v1.VirtualInstance{Name: name, Addresses: []string{h.Addr4().String()}})
	}
	proxy := func(config map[string]any) v1.Module { return module("px", "proxy", "app=web", config) }
	n.apply(proxy(nil), store)
	n.settled(map[string]int{"px": 2})
	stays := func(what string) {
		t.Helper()
		for range 3 {
			if got := askName(t, n.web, "10.30.0.9:80"); got != "store0" {
				t.Errorf("%s: the client goes to %q, want store0", what, got)
			}
		}
	}
	// The control plane of the proxy is notified of virtual services after the response to their change.
	n.Eventually("both addresses are there", func() bool {
		_, err := tryName(n.web, "10.30.0.10:80")
		_, other := tryName(n.web, "10.30.0.9:80")
		return err == nil && other == nil
	})
	stays("first")
	met := map[string]bool{}
	for range 3 {
		met[askName(t, n.web, "10.30.0.10:80")] = true
	}
	if len(met) != 3 {
		t.Errorf("without affinity the client reaches %v", met)
	}
	n.Kill()
	stays("without the agent")
	n.start()
	n.settled(map[string]int{"px": 2})
	stays("after a restart of the agent")
	before := n.programs()
	n.apply(proxy(map[string]any{"shortPath": false}))
	stays("with another program")
	n.apply(proxy(map[string]any{"tables": map[string]any{"sessions": 1024}}))
	stays("with a table of another size")
	if n.programs() == before {
		t.Error("no program was replaced")
	}
	store.Spec.Instances = store.Spec.Instances[1:]
	n.apply(store)
	n.Eventually("store0 gets no new connections", func() bool {
		name, err := tryName(n.web, "10.30.0.9:80") // a connection in progress to store0 is reset
		return err == nil && name != "store0"
	})
	next := askName(t, n.web, "10.30.0.9:80")
	for range 3 {
		if got := askName(t, n.web, "10.30.0.9:80"); got == "store0" || got != next {
			t.Errorf("without store0: the client goes to %q, want %q", got, next)
		}
	}
}
