// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	kerbnode "github.com/kerb-edge/kerb/internal/lab/node"
)

// Filters of a trace match packets as they arrive, also if a module translates or answers them: after a firewall,
// before a tunnel, all on one service. The chain of the instance's service is shown with them.
func TestTraceBeforeTranslation(t *testing.T) {
	n, client, servers := newMesh(t, "", nil)
	allow := map[string]any{"ingress": "allow", "egress": "allow"}
	tunnel := kerbnode.Module("tun", "tunnel", "app=mesh", map[string]any{
		"nodes": []any{map[string]any{"address": n.Lab.Gateway4().String(), "subnets": []string{"10.18.0.0/26"}}}})
	tunnel.Spec.Attach.Interfaces = []string{n.Lab.Bridge()}
	n.Apply(kerbnode.Module("fw", "firewall", "app=mesh", map[string]any{"defaultPolicy": allow}), tunnel)
	spec := meshSpec(servers, v1.PolicyRoundRobin)
	spec.Instances = spec.Instances[:1]
	spec.Addresses = spec.Addresses[:2]
	n.Apply(virtualService("web", spec))
	n.synced("web")
	server := netip.AddrPortFrom(servers[0].Addr4(), targetPort).String()
	for _, c := range []struct {
		port                           uint16
		verdict, to, modules, instance string
	}{{port, "redirect", server, "fw,px,tun", "web/" + spec.Instances[0].Name},
		{port + 1, "reply", client.Addr4().String(), "fw,px", ""}} {
		at := netip.AddrPortFrom(virtual4, c.port)
		got := n.traced(t, []string{"--host", virtual4.String(), "--protocol", "tcp"}, func() {
			if conn, err := dialTCP(client, at); err == nil {
				conn.Close()
			}
		})
		var modules []string
		for _, s := range got.Steps {
			modules = append(modules, s.Module)
		}
		if got.Direction != "egress" || got.Destination != at.String() ||
			!strings.HasPrefix(got.Source, client.Addr4().String()+":") ||
			got.Time.IsZero() || strings.Join(modules, ",") != c.modules {
			t.Fatalf("traced to %s: %+v", at, got)
		}
		if px := got.Steps[1]; px.Verdict != c.verdict || !strings.HasPrefix(px.Destination, c.to) ||
			px.Name != c.instance || (px.Value == 0) != (c.instance == "") {
			t.Errorf("to %s the proxy does %+v", at, px)
		}
		if c.instance == "" {
			if len(got.Then) != 0 {
				t.Errorf("an answered packet is seen again: %+v", got.Then)
			}
			continue
		}
		// with the address from the proxy, which the filter does not match
		if len(got.Then) != 1 || got.ID == "" || got.Then[0].Service != servers[0].Name() ||
			got.Then[0].Source != got.Source || got.Then[0].Direction != "ingress" ||
			got.Then[0].Destination != server || got.Then[0].Time.Before(got.Time) {
			t.Errorf("at the instance: %+v", got.Then)
		}
	}
}

// traced returns the first SYN that a trace shows while try is repeated.
func (n *node) traced(t *testing.T, flags []string, try func()) (p v1.TracedPacket) {
	t.Helper()
	cmd := n.Command(t.Context(), append([]string{"trace", "-o", "json", "--count", "0", "--for", "1m"}, flags...)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	found := make(chan bool)
	go func() {
		for lines := json.NewDecoder(out); ; {
			p = v1.TracedPacket{}
			if err := lines.Decode(&p); err != nil || p.TCPFlags == "S" {
				found <- err == nil
				return
			}
		}
	}()
	for {
		select {
		case ok := <-found:
			if !ok {
				t.Fatalf("kerb trace shows no connection that is opened; the agent said\n%s", n.Log())
			}
			return p
		default:
			try()
		}
	}
}

// A firewall that denies by default and the proxy are on one client, and the instance is not a service of this node:
// the firewall processes packets in both directions with the virtual address. If the operator places the firewall first
// for packets to the client, the replies are lost, and the operator is warned.
func TestFirewallWithProxyOnClient(t *testing.T) {
	n, client, servers := newMesh(t, "", nil)
	spec := meshSpec(servers, v1.PolicyRoundRobin)
	spec.Instances = spec.Instances[2:]
	spec.Addresses = spec.Addresses[:1]
	n.Apply(virtualService("web", spec), kerbnode.Service(client, "app=mesh", "role=client"))
	n.synced("web")
	far := servers[2].Addr4().String()
	apply := func(direction v1.OrderDirection) string {
		t.Helper()
		var result v1.ApplyResult
		fw := kerbnode.Module("fw", "firewall", "role=client", map[string]any{})
		fw.Spec.Order.Direction = direction
		n.Must("PUT", "/v1/modules/fw", fw, &result)
		return strings.Join(result.Warnings, "\n")
	}
	conditions := func() (out []string) {
		for _, name := range []string{"fw", "px"} {
			var m v1.Module
			n.Must("GET", "/v1/modules/"+name, nil, &m)
			for _, c := range m.Status.Conditions {
				if c.Type == "RemoteInstances" && c.Status == "False" && strings.Contains(c.Message, far) {
					out = append(out, name)
				}
			}
		}
		return out
	}
	if text := apply(v1.OrderSame); !strings.Contains(text, far) || !strings.Contains(text, "order.direction") {
		t.Errorf("the warning is %q", text)
	}
	if got := conditions(); len(got) != 2 {
		t.Errorf("modules with the condition: %v", got)
	}
	var status v1.NodeStatus
	n.Must("GET", "/v1/status", nil, &status)
	if got := fmt.Sprint(status.Problems); strings.Count(got, "RemoteInstances") != 2 {
		t.Errorf("problems: %s", got)
	}
	if text := apply(v1.OrderMirrored); strings.Contains(text, far) {
		t.Errorf("in the default order the warning is %q", text)
	}
	if got := conditions(); len(got) != 0 {
		t.Errorf("in the default order these modules have the condition: %v", got)
	}
	c, err := dialTCP(client, netip.AddrPortFrom(virtual4, port))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.exchange("hello"); err != nil {
		t.Error(err)
	}
	c.Close()
}
