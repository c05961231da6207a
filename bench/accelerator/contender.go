// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/path"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/tempdir"
)

// contender is a config at a place, with hosts, proxies, and a cgroup for all programs on them. Contenders share
// nothing.
type contender struct {
	*experiment
	config string
	place  *place
	group  *path.Group
	dir    string // of configuration files and sockets
	kerb   *kerb  // nil without the accelerator
	bench.Closers
}

// labPrefix returns a letter for the place and one for the config, so that no two contenders share a lab.
func (v variant) labPrefix(place, config string) string {
	letters := map[string]string{"plain": "p", "plain-again": "a", "kerb": "k", "kerb-allow": "w", "redirect-all": "r",
		publishedKeys: "y", "unix": "u"}
	return v.labs + place[:1] + letters[config]
}

func (e *experiment) open(ctx context.Context, config string) (*contender, error) {
	c := &contender{experiment: e, config: config}
	return c, c.CloseOn(c.build(ctx))
}

// build deploys the accelerator before it starts any program, since the accelerator ignores sockets that already
// listen.
func (c *contender) build(ctx context.Context) (err error) {
	prefix := c.labPrefix(c.where, c.config)
	if c.place, err = c.openPlace(c.where, prefix, families[c.family]); err != nil {
		return err
	}
	c.Later(c.place.lab.Close)
	if c.group, err = path.NewGroup(prefix); err != nil {
		return err
	}
	c.Later(c.group.Close)
	if c.dir, err = tempdir.New(); err != nil {
		return err
	}
	c.Later(func() error { return tempdir.Remove(c.dir) })
	if c.config == "unix" {
		c.place.overSockets(c.dir)
	}
	if err := c.accelerator(); err != nil {
		return err
	}
	for i, h := range c.place.hops {
		if err := c.startProxy(ctx, i, h); err != nil {
			return fmt.Errorf("proxy %d: %w", i+1, err)
		}
	}
	if c.place.start != nil {
		return c.place.start(c, ctx)
	}
	return nil
}

// accelerator starts the accelerator of the config, if it has one.
func (c *contender) accelerator() error {
	switch {
	case c.config == publishedKeys:
		return c.startPublished()
	case modes[c.config] != "":
		return c.startKerb()
	}
	return nil
}

func (c *contender) startProxy(ctx context.Context, number int, h hop) error {
	program := proxies[c.proxy]
	if h.program != nil {
		program = *h.program
	}
	dir := filepath.Join(c.dir, fmt.Sprintf("hop%d", number))
	config := filepath.Join(dir, program.config)
	err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(config, []byte(program.write(dir, h, c.ports())), 0o644))
	if err != nil {
		return err
	}
	p, err := c.start(ctx, h.host.Namespace, h.side, dial(c.place.fromWithin(h.listen(firstPort))),
		program.args(config)...)
	if err == nil {
		c.Later(p.stop)
	}
	return err
}

// process is a running server or proxy.
type process struct {
	cmd  *exec.Cmd
	said bytes.Buffer
	exit chan error
}

// command prepares a program on a host: in the contender's cgroup, on the CPU of a side, with priority over other
// tasks.
func (c *contender) command(ctx context.Context, ns *netlab.Namespace, side int, args ...string) (*exec.Cmd, error) {
	if _, err := exec.LookPath(args[0]); err != nil {
		return nil, fmt.Errorf("%w: %s is not installed", bench.ErrLeftOut, args[0])
	}
	return c.group.Adopt(ns.Command(ctx, c.tools.Path("run"), append([]string{c.tools.cpus[side]}, args...)...)), nil
}

// start starts a program, and returns when it is ready.
func (c *contender) start(ctx context.Context, ns *netlab.Namespace, side int, serves func() error,
	args ...string) (*process, error) {
	cmd, err := c.command(ctx, ns, side, args...)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, exit: make(chan error, 1)}
	cmd.Stdout, cmd.Stderr, cmd.Dir = &p.said, &p.said, c.dir
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { p.exit <- cmd.Wait() }()
	if err := p.await(ns, serves); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", filepath.Base(args[0]), err), p.stop())
	}
	return p, nil
}

func (p *process) await(ns *netlab.Namespace, serves func() error) (err error) {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if err := p.failure(); err != nil {
			return err
		}
		if err = ns.Do(serves); err == nil {
			return nil
		}
	}
	return fmt.Errorf("not accepting connections: %w", err)
}

// failure returns the error of a program that has exited.
func (p *process) failure() error {
	select {
	case err := <-p.exit:
		p.exit <- err
		return fmt.Errorf("exited: %w: %s", err, &p.said)
	default:
		return nil
	}
}

func dial(to address) func() error {
	return func() error {
		conn, err := net.Dial(to.network(), string(to))
		if err == nil {
			err = conn.Close()
		}
		return err
	}
}

// stop kills the program, which has no state to save.
func (p *process) stop() error {
	_ = p.cmd.Process.Kill()
	err := <-p.exit
	if exit := new(exec.ExitError); errors.As(err, &exit) && !exit.Exited() {
		return nil
	}
	return fmt.Errorf("%s exited: %w: %s", p.cmd.Args, err, &p.said)
}

// runClient runs a client. It returns the client's output, and the CPU time that the contender's programs used.
func (c *contender) runClient(ctx context.Context, args ...string) (out []byte, cpu time.Duration, err error) {
	cmd, err := c.command(ctx, c.place.client.Namespace, clientSide, args...)
	if err != nil {
		return nil, 0, err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	before, err := c.group.CPU()
	if err != nil {
		return nil, 0, err
	}
	if out, err = cmd.Output(); err != nil {
		return nil, 0, fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, &stderr)
	}
	after, err := c.group.CPU()
	return out, after - before, err
}

// Close notes which programs the module excluded, while they still run, and closes the contender.
func (c *contender) Close() error {
	var err error
	if c.kerb != nil {
		err = c.noteExcluded()
	}
	return errors.Join(err, c.Closers.Close())
}
