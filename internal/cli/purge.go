// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/lockfile"
	"github.com/kerb-edge/kerb/internal/paths"
)

func (a *app) purgeCommand() *cobra.Command {
	var f agentFlags
	var all bool
	c := answers(&cobra.Command{
		Use:   "purge",
		Short: "Remove everything that Kerb has installed in the kernel",
		Long: "Detaches all chains of this node's agent and removes its programs, maps and pins, and the ports, bridge " +
			"and veths\n" +
			"of its Oakestra listener; and, with kerb-bench, the leftovers of killed benchmarks. Other programs are " +
			"not touched.\n" +
			"The agent must not be running. The desired state is kept, and an agent that is started again restores " +
			"everything, unless\n" +
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
			gone, err := a.purge(c.Paths, all)
			if err != nil {
				return fmt.Errorf("purge: %w", err)
			}
			return a.print(cmd.OutOrStdout(), gone, func(w io.Writer) {
				fmt.Fprintln(w, "nothing of Kerb is left in the kernel")
				if gone.State {
					fmt.Fprintln(w, "the desired state is removed")
				}
			})
		},
	})
	f.addPaths(c)
	c.Flags().BoolVar(&all, "all", false, "remove the desired state with pulled packages and the socket, too")
	return c
}

// purged lists what was removed.
type purged struct {
	Kernel bool `json:"kernel"`
	State  bool `json:"state"`
}

// purge prevents agents from starting until it is done, since it would remove their state as well.
func (a *app) purge(p paths.Paths, all bool) (gone purged, err error) {
	release, err := lockfile.AcquireNode(p)
	if err != nil {
		return gone, err
	}
	defer func() {
		err = errors.Join(err, release())
		_ = os.Remove(p.Run) // fails if it is not empty
	}()
	if err := purgeKernel(p.BPF, p.Run); err != nil {
		return gone, err
	}
	if a.build.Purge != nil {
		if err := a.build.Purge(p); err != nil {
			return gone, err
		}
	}
	if err := sweepBenches(); err != nil {
		return gone, err
	}
	gone.Kernel = true
	if all {
		err = errors.Join(purgeFiles(p), purgeUsers(paths.Users()))
		gone.State = err == nil
	}
	return gone, err
}

func checkNoAgent(socket string) error {
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return nil
	}
	c.Close()
	return &apierrors.Conflict{Reason: "an agent answers on " + socket + ": stop it first (systemctl stop kerb)"}
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

// purgeFiles removes files created by Kerb, and their directory if it is empty afterwards.
func purgeFiles(p paths.Paths) error {
	files := []string{p.Store(), p.Store() + ".journal", p.Store() + ".new", // left by a killed agent
		p.Socket(), p.Oakestra(), p.OakestraSocket(), p.Containers(), p.Resolved(), p.SocketFacts(),
		p.Bindings()}
	damaged, err := filepath.Glob(p.Store() + "*.damaged-*")                                // and its journal
	halves, e := filepath.Glob(filepath.Join(p.State, "."+filepath.Base(p.Bindings())+"*")) // of a killed agent
	err = errors.Join(err, e)
	for _, path := range slices.Concat(files, damaged, halves) {
		if e := os.Remove(path); !errors.Is(e, os.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	for _, dir := range []string{p.ControlState(), p.ControlSockets(), p.ModuleSockets(), p.Packages(), p.History(),
		p.Samples()} {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	_ = os.Remove(p.State)
	return errors.Join(err, purgeUsers(p.MountedUsers()))
}

// purgeUsers removes the file that the agents of the machine share, and its directory, unless another agent uses them.
func purgeUsers(path string) error {
	err := lockfile.RemoveUnshared(path)
	_ = os.Remove(filepath.Dir(path))
	return err
}
