// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/node"
)

// sourceRate keeps the responder's limit in force, but above what the client can send.
const sourceRate = 10_000_000

// startKerb runs the agent on the server's host, with the responder on the interface at which requests come in.
func (c *contender) startKerb() error {
	n, err := node.Start(c.place.server)
	if err != nil {
		return err
	}
	c.Later(n.Close)
	c.agents = append(c.agents, n)
	m := node.Module("responder", "responder", "", map[string]any{"listeners": []map[string]any{c.listener()}})
	m.Spec.Attach = v1.Attach{Interfaces: []string{c.place.nic}}
	m.Spec.Hook = "xdp"
	if err := n.Apply(m); err != nil {
		return err
	}
	return c.settle()
}

func (c *contender) listener() map[string]any {
	l := map[string]any{"port": c.port(), "addresses": []string{c.place.address.String()}, "sourceRate": sourceRate}
	if c.protocol == "coap" {
		l["app"] = "coap"
		l["resources"] = []map[string]any{{"path": coapPath, "value": coapValue}}
		return l
	}
	l["app"], l["mode"] = "speedlimit", c.config
	return l
}

// The one CoAP resource, as in src/wire.h.
const (
	coapPath  = "/sensors/road-sign-7/speed-limit"
	coapValue = "120"
)

// settle sees that the responder runs at the driver.
func (c *contender) settle() error {
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
