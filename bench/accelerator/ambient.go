// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/ambient"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// tunnelIdle is the idle timeout of ztunnel's connections between the pods: less than the time between rounds, so that
// no round uses the connection of another workload.
const tunnelIdle = 10 * time.Millisecond

// addZtunnel redirects both pods to one ztunnel, as on a node.
func (p *place) addZtunnel() { p.start = (*contender).startZtunnel }

func (c *contender) startZtunnel(ctx context.Context) error {
	p := c.place
	agent, err := ambient.Prepare(ambient.Mesh{Pods: []*netlab.Host{p.client, p.server}, Service: service,
		Server: p.server, Ports: c.ports()}, filepath.Join(c.dir, ambient.Program))
	if err != nil {
		return err
	}
	c.Later(agent.Close)
	ready := dial(at(p.loopback, ambient.ReadyPort)(0))
	program, err := c.start(ctx, p.lab.Node(), serverSide, ready, agent.Command(ambient.Program, tunnelIdle)...)
	if err != nil {
		if ambient.Untestable(err.Error()) {
			err = fmt.Errorf("%w: this ztunnel lacks the build feature testing, with which it issues its own certificates: %w",
				bench.ErrLeftOut, err)
		}
		return err
	}
	c.Later(program.stop)
	return errors.Join(agent.Admit(), program.failure())
}
