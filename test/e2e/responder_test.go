// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/intercept"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
)

const signPort = 8080

// signState is the module's report of its sign.
type signState struct {
	State struct {
		Cars     int64
		Answered uint64
	}
}

// askSign queries the speed limit from a host, and returns it. No process listens on the port, so that only the kernel
// can answer.
func (n *node) askSign(from *netlab.Host, to netip.Addr) uint32 {
	n.T.Helper()
	var conn *net.UDPConn
	err := from.Do(func() (err error) {
		conn, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, signPort)))
		return err
	})
	if err != nil {
		n.T.Fatal(err)
	}
	defer conn.Close()
	request := make([]byte, 8)
	binary.LittleEndian.PutUint32(request, 4)
	_ = conn.SetDeadline(time.Now().Add(nodetest.Patience))
	if _, err := conn.Write(request); err != nil {
		n.T.Fatal(err)
	}
	size, err := conn.Read(request)
	if err != nil || size != 8 || binary.LittleEndian.Uint32(request) != 3 {
		n.T.Fatalf("reply %x, %v", request[:size], err)
	}
	return binary.LittleEndian.Uint32(request[4:])
}

func (n *node) signState() (s signState) {
	n.T.Helper()
	if err := json.Unmarshal([]byte(n.must("module", "query", "sign", "state/road", "-o", "json")), &s); err != nil {
		n.T.Fatal(err)
	}
	return s
}

// signEvents streams the states of the sign from the agent.
func (n *node) signEvents(ctx context.Context) <-chan signState {
	n.T.Helper()
	stream, err := client.New(n.Socket()).Stream(ctx, "/v1/modules/sign/events?listener=road")
	if err != nil {
		n.T.Fatal(err)
	}
	out := make(chan signState)
	go func() {
		defer stream.Close()
		defer close(out)
		for lines := json.NewDecoder(stream); ; {
			var s signState
			if lines.Decode(&s) != nil {
				return
			}
			select {
			case out <- s:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// On native XDP of a veth, replies reach an unprepared client: the agent enables NAPI on it.
func TestResponderOnXDP(t *testing.T) {
	n := newNode(t)
	n.start()
	m := module("sign", "responder", "",
		map[string]any{"listeners": []any{map[string]any{"app": "speedlimit", "name": "road",
			"port": signPort, "addresses": []string{n.db.Addr4().String(), n.db.Addr6().String()}}}})
	m.Spec.Attach.Interfaces = []string{n.web.Outer()}
	n.apply(m)
	n.Eventually("the data plane knows the interface", func() bool { return n.condition("sign").Status == "True" })
	for _, to := range []netip.Addr{n.db.Addr4(), n.db.Addr6()} {
		if got := n.askSign(n.web, to); got != 120 {
			t.Errorf("%v: %d km/h", to, got)
		}
	}
	if out := n.must("module", "get", "sign"); !strings.Contains(out, "RepliesDelivered") {
		t.Errorf("the module does not say that replies arrive: %s", out)
	}
	n.Kill()
	n.start()
	n.Eventually("the chain is adopted", func() bool {
		return strings.Contains(n.must("module", "get", "sign"), "RepliesDelivered")
	})
	if got := n.askSign(n.web, n.db.Addr4()); got != 120 {
		t.Errorf("after a restart: %d km/h", got)
	}
	n.checkPins()
}

// The kernel answers for a service, with and without the agent; the count survives a restart and a change of the
// config, can be set, and is streamed.
func TestResponder(t *testing.T) {
	n := newRunningNode(t)
	config := map[string]any{"listeners": []any{map[string]any{"app": "speedlimit", "name": "road", "port": signPort,
		"addresses": []string{n.web.Addr4().String(), n.web.Addr6().String()}}}}
	n.apply(module("sign", "responder", "app=web", config))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := n.signEvents(ctx)
	for _, to := range []netip.Addr{n.web.Addr4(), n.web.Addr6()} {
		if got := n.askSign(n.db, to); got != 120 {
			t.Errorf("%v: %d km/h", to, got)
		}
	}
	for s := range events {
		if s.State.Answered == 2 {
			break
		}
	}
	cancel()
	n.Kill()
	n.askSign(n.db, n.web.Addr4())
	n.start()
	n.Eventually("the state is adopted", func() bool { return n.signState().State.Cars == 3 })
	n.must("module", "set", "sign", "road/cars=98")
	if got := n.askSign(n.db, n.web.Addr6()); got != 30 {
		t.Errorf("with 99 cars: %d km/h", got)
	}
	if out := n.must("module", "values", "sign"); !strings.Contains(out, "road/cars") || !strings.Contains(out, "99") {
		t.Errorf("values: %s", out)
	}
	n.refused(n.kerb("module", "set", "sign", "road/cars=many"), 2, "not a number")
	n.refused(n.kerb("module", "set", "sign", "track/cars=1"), 3, `no listener "track"`)
	config["partialChecksums"] = "accept"
	config["listeners"] =
		append([]any{map[string]any{"app": "echo", "port": 7000, "addresses": []string{n.web.Addr4().String()}}},
			config["listeners"].([]any)...)
	n.apply(module("sign", "responder", "app=web", config))
	n.askSign(n.db, n.web.Addr4())
	if s := n.signState(); s.State.Cars != 100 || s.State.Answered != 5 {
		t.Errorf("after a change: %+v", s)
	}
	n.checkPins()
}

// Packets that the firewall denies reach neither the responder nor a program that intercepts; permitted ones reach
// both.
func TestDeniedRequests(t *testing.T) {
	n := newRunningNode(t)
	firewall := func(ingress string) v1.Module {
		return module("fw", "firewall", "app=web", map[string]any{"defaultPolicy": map[string]any{"ingress": ingress}})
	}
	n.apply(firewall("deny"), module("icpt", "intercept", "app=web", stealing(ctrlPort)),
		module("sign", "responder", "app=web",
			map[string]any{"listeners": []any{map[string]any{"app": "speedlimit", "name": "road", "port": signPort,
				"addresses": []string{n.web.Addr4().String()}}}}))
	var r *intercept.Receiver
	n.Eventually("the module serves programs", func() (ok bool) {
		var err error
		r, err = intercept.Open(filepath.Join(n.Run, "modules", "icpt.sock"), "ctrl", intercept.Options{KeepPriority: true})
		return err == nil
	})
	defer r.Close()
	s := n.numbered(n.db, n.web.Addr4())
	s.send(3)
	n.Eventually("the responder's requests are denied", func() bool {
		n.sendSign(n.db, n.web.Addr4())
		return n.dropped("fw") >= 6
	})
	if got := n.signState().State.Answered; got != 0 {
		t.Errorf("%d denied requests were answered", got)
	}
	if got := r.Stats().Received; got != 0 {
		t.Errorf("%d denied packets were taken", got)
	}
	n.apply(firewall("allow"))
	if got := n.askSign(n.db, n.web.Addr4()); got != 120 {
		t.Errorf("%d km/h", got)
	}
	first := s.next
	s.send(2)
	receives(t, r, first, 2)
	n.checkPins()
}

// sendSign queries the speed limit and does not wait for a reply.
func (n *node) sendSign(from *netlab.Host, to netip.Addr) {
	n.T.Helper()
	err := from.Do(func() error {
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, signPort)))
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write(binary.LittleEndian.AppendUint32(nil, 4))
		return err
	})
	if err != nil {
		n.T.Fatal(err)
	}
}

// dropped returns the number of packets that a module has dropped.
func (n *node) dropped(module string) (total uint64) {
	n.T.Helper()
	for _, d := range get[v1.Module](n, "module", module).Status.Drops {
		total += d.Packets
	}
	return total
}
