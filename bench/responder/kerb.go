// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/kerbmods"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// sourceRate enables the responder's rate limit, but above the rate of the client.
const sourceRate = 10_000_000

// startKerb runs the agent on the server's host, with the responder on the interface that receives the requests.
func (c *contender) startKerb() error {
	n, err := node.Start(c.place.server)
	if err != nil {
		return err
	}
	c.Later(n.Close)
	c.agents = append(c.agents, n)
	m, err := c.module(n)
	if err != nil {
		return err
	}
	m.Spec.Attach = v1.Attach{Interfaces: []string{c.place.nic}}
	m.Spec.Hook = "xdp"
	if err := n.Apply(m); err != nil {
		return err
	}
	return c.checkHook()
}

// module returns the responder, or the benchmark's own module for work.
func (c *contender) module(n *node.Node) (v1.Module, error) {
	if c.protocol == "work" {
		path, err := kerbmods.Extract("work", n.Dir)
		return node.Module("work", path, "", map[string]any{"port": c.port()}), err
	}
	listeners := []map[string]any{c.listener(c.port())}
	if c.config == "kernel-limited" {
		listeners[0]["totalRate"] = lowRate
		listeners = append(listeners, c.listener(c.port()+1))
	}
	return node.Module("responder", "responder", "", map[string]any{"listeners": listeners}), nil
}

func (c *contender) listener(port int) map[string]any {
	l := map[string]any{"port": port, "addresses": []string{c.place.address.String()}, "sourceRate": sourceRate}
	if c.protocol == "coap" {
		l["app"] = "coap"
		l["resources"] = []map[string]any{{"path": coapPath, "value": coapValue}}
		return l
	}
	mode, recompute, _ := strings.Cut(c.config, "-")
	l["app"], l["mode"] = "speedlimit", mode
	if mode == "mixed" && recompute != "" {
		l["recompute"] = recompute
	}
	return l
}

// The one CoAP resource, as in src/wire.h.
const (
	coapPath  = "/sensors/road-sign-7/speed-limit"
	coapValue = "120"
)

// checkHook checks that the responder runs in native mode.
func (c *contender) checkHook() error {
	return c.place.server.Do(func() error {
		nic, err := netlink.LinkByName(c.place.nic)
		if err != nil {
			return err
		}
		if xdp := nic.Attrs().Xdp; xdp == nil || xdp.AttachMode != nl.XDP_ATTACHED_DRV {
			return fmt.Errorf("%w: the responder does not run on native XDP: %+v", bench.ErrLeftOut, xdp)
		}
		return nil
	})
}
