// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"syscall"

	"github.com/kerb-edge/kerb/deploy/examples"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// Common steps of the demos of one field: they start with a network of their own and stepAgent.

// host adds a host to the network. The examples' addresses are documentation addresses.
func (d *demo) host(name, addr4, addr6 string) (*netlab.Host, error) {
	return d.lab.Host(name, netlab.HostOptions{Addr4: netip.MustParsePrefix(addr4), Addr6: netip.MustParsePrefix(addr6)})
}

// applyExample applies a file of deploy/examples, unchanged.
func (d *demo) applyExample(ctx context.Context, name string) error {
	text, err := examples.Files.ReadFile(name)
	if err != nil {
		return err
	}
	d.say("This is deploy/examples/%s:", name)
	if err := d.write(name, string(text)); err != nil {
		return err
	}
	return d.kerb(ctx, "apply", "-f", name)
}

// answer shows and runs a kerb command, and returns its output.
func (d *demo) answer(ctx context.Context, args ...string) (string, error) {
	d.command("kerb " + strings.Join(args, " "))
	out, err := d.quietly(ctx, args...)
	d.show(out)
	return out, err
}

// killAgent kills the agent, to show what the kernel does without it.
func (d *demo) killAgent() error {
	d.command(fmt.Sprintf("kill -9 %d", d.agent.Process.Pid))
	return d.agent.stop(syscall.SIGKILL)
}

// purge removes the modules without an agent.
func (d *demo) purge(ctx context.Context) error {
	if err := d.recordPrograms(); err != nil {
		return err
	}
	return d.kerb(ctx, "purge", "--all", "--config", "kerb.yaml")
}

// stepRemove ends a demo.
func (d *demo) stepRemove(ctx context.Context) error {
	d.command(fmt.Sprintf("kill %d", d.agent.Process.Pid))
	if err := d.agent.stop(syscall.SIGTERM); err != nil {
		return err
	}
	return d.purge(ctx)
}
