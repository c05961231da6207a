// SPDX-License-Identifier: Apache-2.0

package combinations

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/node/nodetest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

const tunnelPort = 7187

// A trace shows decapsulated packets together with the tunnel's packets: a filter of the outer port matches both, and
// one of the inner addresses shows packets into the tunnel as they leave.
func TestTraceThroughTunnel(t *testing.T) {
	f := newField(t)
	packages := []string{"counter", "tunnel"}
	f.deploy(packages)
	c := &combination{field: f, packages: packages}
	far := f.servers[1]
	for _, addr := range far.addresses(false) {
		into := follow(t, f.nodes[0], "--service", "client", "--host", addr.String(), "--port", fmt.Sprint(livePort))
		out := follow(t, f.nodes[1], "--protocol", "udp", "--port", fmt.Sprint(tunnelPort))
		var sent, got *v1.TracedPacket
		wait.Until(t, "both nodes show a packet", func() bool {
			c.checkReply(netip.AddrPortFrom(addr, livePort))
			for len(into) > 0 {
				if p := <-into; p.Direction == "egress" {
					sent = &p
				}
			}
			for len(out) > 0 {
				if p := <-out; p.Direction == "ingress" {
					got = &p
				}
			}
			return sent != nil && got != nil
		})
		to := netip.AddrPortFrom(addr, livePort).String()
		if sent.Destination != to || last(*sent) == to || port(t, last(*sent)) != tunnelPort {
			t.Errorf("into the tunnel: %+v", *sent)
		}
		if port(t, got.Destination) != tunnelPort || len(got.Then) != 1 || got.Then[0].Service != far.Name() ||
			got.Then[0].Destination != to || got.Then[0].Direction != "ingress" || last(*got) != to {
			t.Errorf("out of the tunnel: %+v", *got)
		}
	}
}

// last returns the destination of a packet when it leaves its first chain.
func last(p v1.TracedPacket) string {
	to := p.Destination
	for _, s := range p.Steps {
		if s.Destination != "" {
			to = s.Destination
		}
	}
	return to
}

func port(t *testing.T, end string) uint16 {
	t.Helper()
	at, err := netip.ParseAddrPort(end)
	if err != nil {
		t.Fatal(err)
	}
	return at.Port()
}

// follow runs kerb trace until the test ends.
func follow(t *testing.T, n *nodetest.Node, flags ...string) <-chan v1.TracedPacket {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := n.Command(ctx, append([]string{"trace", "-o", "json", "--count", "0", "--for", "2m"}, flags...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); _ = cmd.Wait() })
	packets := make(chan v1.TracedPacket, 1000)
	go func() {
		for lines := json.NewDecoder(out); ; {
			var p v1.TracedPacket
			if lines.Decode(&p) != nil {
				return
			}
			select {
			case packets <- p:
			case <-time.After(time.Minute):
				return
			}
		}
	}()
	return packets
}
