// SPDX-License-Identifier: Apache-2.0

// Package demo implements `kerb demo`. It creates three services in a small network, runs a real agent, changes modules
// while traffic flows, checks each result, and cleans up. Like an operator, it uses the command line of kerb. It
// changes nothing outside its network namespaces and directories.
package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/binpath"
)

// Command returns `kerb demo`.
func Command() *cobra.Command {
	var keep, check bool
	var picture string
	c := &cobra.Command{
		Use:   "demo",
		Short: "Deploy and change modules on three demo services with live traffic",
		Long: "Creates three services in network namespaces (a web server, a client, an iperf3 server), starts an agent " +
			"with separate\ndirectories, deploys counter and firewall, and changes both while traffic flows. Prints each step " +
			"and checks its result.\nTakes under a minute, needs root, ip, nsenter and iperf3, and cleans up. Exits with 1 if " +
			"a check fails.",
		Example: "  kerb demo\n  kerb demo --keep\n  kerb demo --check",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			t := newPrinter(cmd.OutOrStdout(), check)
			if picture == "" {
				return run(cmd.Context(), t, threeServices(keep && !check))
			}
			r := &recorder{Writer: t.out, started: t.started}
			t.out, t.terminal = r, true
			err := run(cmd.Context(), t, threeServices(false))
			return errors.Join(err, writePicture(picture, "kerb demo", r.lines))
		},
	}
	c.Flags().BoolVar(&keep, "keep", false, "keep everything running afterwards, until Ctrl-C")
	c.Flags().BoolVar(&check, "check", false, "for scripts: plain lines, never keeps running")
	c.Flags().StringVar(&picture, "picture", "", "write the output as an animated terminal to this file (SVG)")
	c.MarkFlagsMutuallyExclusive("picture", "keep")
	c.MarkFlagsMutuallyExclusive("picture", "check")
	c.AddCommand(webCommand())
	for _, p := range fields {
		c.AddCommand(p.command())
	}
	return c
}

// scenario describes a demo. needs maps required programs to Debian packages.
type scenario struct {
	name, short, long string
	needs             map[string]string
	steps             []step
}

func threeServices(keep bool) scenario {
	return scenario{needs: map[string]string{"iperf3": "iperf3"}, steps: steps(keep)}
}

// fields are the demos of one field of use each.
var fields = []scenario{sign, rpl, mesh, controller}

// command returns `kerb demo NAME`.
func (p scenario) command() *cobra.Command {
	var check bool
	c := &cobra.Command{
		Use:     p.name,
		Short:   p.short,
		Long:    p.long,
		Example: "  kerb demo " + p.name + "\n  kerb demo " + p.name + " --check",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return run(cmd.Context(), newPrinter(cmd.OutOrStdout(), check), p)
		},
	}
	c.Flags().BoolVar(&check, "check", false, "for scripts: plain lines")
	return c
}

var errInterrupted = errors.New("interrupted")

// errChecks is the error of a complete demo with failed checks.
var errChecks = errors.New("at least one check failed")

// run runs a demo. It also cleans up after an error or an interrupt, and reports if that fails.
func run(ctx context.Context, t *printer, p scenario) error {
	if err := prerequisites(p.needs); err != nil {
		return err
	}
	program, err := binpath.FindKerb()
	if err != nil {
		return err
	}
	unlock, err := onlyDemo()
	if err != nil {
		return err
	}
	defer unlock()
	d := &demo{printer: t, program: program, steps: p.steps}
	err = d.play(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		err = errInterrupted
	case err != nil:
		d.showLog()
	}
	if e := d.end(); e != nil {
		err = errors.Join(err, fmt.Errorf("cleaning up: %w", e))
	}
	t.summary(err)
	if err == nil && t.failed > 0 {
		err = errChecks
	}
	return err
}

func prerequisites(needs map[string]string) error {
	if os.Geteuid() != 0 {
		return errors.New("the demo creates network namespaces and loads programs into the kernel: run it as root")
	}
	all := map[string]string{"nsenter": "util-linux"}
	maps.Copy(all, needs)
	for program, pkg := range all {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%s is missing: apt-get install %s, or scripts/setup demo", program, pkg)
		}
	}
	return nil
}

// step is a part of the demo under a heading.
type step struct {
	title string
	run   func(*demo, context.Context) error
}

// play runs the steps in order until one cannot continue.
func (d *demo) play(ctx context.Context) error {
	d.interrupted = func() bool { return ctx.Err() != nil }
	defer func() { d.interrupted = nil }()
	for i, s := range d.steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		d.heading(i+1, len(d.steps), s.title)
		if err := s.run(d, ctx); err != nil {
			return err
		}
	}
	return nil
}
