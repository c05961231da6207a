// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/netlab"
	"github.com/kerb-edge/kerb/internal/oakestra"
	"github.com/kerb-edge/kerb/internal/paths"
	"github.com/kerb-edge/kerb/internal/scratch"
	"github.com/spf13/cobra"
)

func (a *app) purgeCommand() *cobra.Command {
	var f agentFlags
	var all bool
	c := &cobra.Command{
		Use:   "purge",
		Short: "Remove everything that Kerb has in the kernel",
		Long: "Detaches all chains of this node's agent and removes its programs, maps and pins, and the ports, bridge and veths\n" +
			"of its Oakestra listener; and what benches that were killed have left. Other programs are left alone.\n" +
			"The agent must not be running. The desired state stays, and an agent that is started again brings all back, unless\n" +
			"--all removes it as well.",
		Example: "  systemctl stop kerb && kerb purge\n  kerb purge --all",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.resolve(cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			if err := checkNoAgent(c.Paths.Socket()); err != nil {
				return err
			}
			if err := purgeKernel(c.Paths.BPF, c.Paths.Run); err != nil {
				return fmt.Errorf("purge: %w", err)
			}
			if err := oakestra.Purge(c.Paths); err != nil {
				return fmt.Errorf("purge: %w", err)
			}
			if err := errors.Join(scratch.Sweep(), netlab.SweepDead()); err != nil {
				return fmt.Errorf("purge: what a killed bench has left: %w", err)
			}
			fmt.Fprintln(cmd.OutOrStdout(), "nothing of Kerb is left in the kernel")
			if !all {
				return nil
			}
			return purgeFiles(cmd, c.Paths)
		},
	}
	f.addPaths(c)
	c.Flags().BoolVar(&all, "all", false, "remove the desired state with pulled packages and the socket, too")
	return c
}

func checkNoAgent(socket string) error {
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return nil
	}
	c.Close()
	return &fault.Conflict{Reason: "an agent answers on " + socket + ": stop it first (systemctl stop kerb)"}
}

func purgeKernel(root, run string) error {
	unlock, err := dataplane.Lock(root)
	if err != nil {
		return err
	}
	defer unlock()
	d, err := dataplane.Open(dataplane.Options{Root: root, Run: run})
	if err != nil {
		return err
	}
	return d.Purge()
}

// purgeFiles removes files that Kerb made, and their directories only if nothing else is in them.
func purgeFiles(cmd *cobra.Command, p paths.Paths) error {
	files := []string{p.Store(), p.Socket(), p.Lock(), p.Oakestra(), p.OakestraSocket(), p.Resolved(), p.SocketFacts()}
	damaged, err := filepath.Glob(p.Store() + ".damaged-*")
	for _, path := range append(files, damaged...) {
		if e := os.Remove(path); !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	err = errors.Join(err, os.RemoveAll(p.ControlState()), os.RemoveAll(p.ControlSockets()), os.RemoveAll(p.ModuleSockets()))
	err = errors.Join(err, os.RemoveAll(p.Packages()))
	for _, dir := range []string{p.State, p.Run} {
		_ = os.Remove(dir) // not if there is more in it
	}
	if err == nil {
		fmt.Fprintln(cmd.OutOrStdout(), "the desired state is removed")
	}
	return err
}
