// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) containersCommand() *cobra.Command {
	return noun("containers", "Make containers services before their first process", a.containersHookCommand(),
		a.containersRuntimeCommand())
}

// starts has the options for holding a container's start.
type starts struct {
	failClosed bool
	timeout    time.Duration
}

const startTime = 10 * time.Second

func (s *starts) addFlags(c *cobra.Command) {
	c.Flags().BoolVar(&s.failClosed, "fail-closed", false, "a container does not start if its modules are not attached; "+
		"without it, it starts, and modules follow with the runtime's events")
	c.Flags().DurationVar(&s.timeout, "timeout", startTime, "how long a start waits")
}

// hold reports a container and waits for its modules. It returns an error only with fail-closed.
func (a *app) hold(ctx context.Context, s starts, state []byte) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := a.build.ReportContainer(ctx, a.socket, state, s.failClosed)
	return s.result(err)
}

func (s starts) result(err error) error {
	if err == nil || s.failClosed {
		return err
	}
	fmt.Fprintf(os.Stderr, "kerb: the container starts without its modules: %v\n", err)
	return nil
}

func (a *app) containersHookCommand() *cobra.Command {
	var s starts
	c := &cobra.Command{
		Use:   "hook",
		Short: "As an OCI hook: return when a container's modules are attached",
		Long: "Reads the state of a container on standard input, as the OCI runtime specification has it for hooks of " +
			"createRuntime,\nand returns when the container is a service with its modules. For Podman's hooks.d; see " +
			"docs/containers.md.",
		Example: "  runc state web | kerb containers hook --fail-closed",
		Args:    noSubcommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := io.ReadAll(cmd.InOrStdin())
			if err != nil {
				return err
			}
			return a.hold(cmd.Context(), s, state)
		},
	}
	s.addFlags(c)
	return c
}

func (a *app) containersRuntimeCommand() *cobra.Command {
	var s starts
	c := &cobra.Command{
		Use:   "runtime PROGRAM [ARGUMENT...]",
		Short: "As an OCI runtime: attach a container's modules before it starts",
		Long: "Executes an OCI runtime such as runc with the arguments. Where they start a container, it makes the " +
			"container a service\nwith its modules first. For runtimes of Docker and containerd; see docs/containers.md.",
		Example: "  kerb containers runtime --fail-closed runc start web",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			program, err := exec.LookPath(args[0])
			if err != nil {
				return err
			}
			state, err := a.build.ContainerState(cmd.Context(), program, args[1:])
			if err == nil && state != nil {
				err = a.hold(cmd.Context(), s, state)
			}
			if err := s.result(err); err != nil {
				return errors.Join(err, a.build.RefuseContainer(program, args[1:], state))
			}
			return fmt.Errorf("execute %s: %w", program, syscall.Exec(program, args, os.Environ()))
		},
	}
	s.addFlags(c)
	c.Flags().SetInterspersed(false)
	return c
}
