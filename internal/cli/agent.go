// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/paths"
	"github.com/spf13/cobra"
)

// agentFlags override the configuration file. Empty ones do not.
type agentFlags struct {
	config, state, run, bpf string
	level, format, group    string
	cgroup                  string
}

func (a *app) agentCommand() *cobra.Command {
	var f agentFlags
	c := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of this node",
		Long: `Runs the agent in the foreground until it is told to end (SIGTERM, Ctrl-C). What it has put into the kernel goes on
without it, and the next agent takes it over.

The configuration file may hold:

  paths: {state: /var/lib/kerb, run: /run/kerb, bpf: /sys/fs/bpf/kerb}
  log: {level: info, format: text}      # debug, info, warn, error; text, json
  socketGroup: kerb                     # may use the socket, if there is such a group
  cgroup: /                             # of version 2: modules on sockets find the services' sockets below it
  tcp:                                  # only with TLS, and clientCA or tokenFile
    address: 192.0.2.1:4600
    certificate: /etc/kerb/node.pem
    key: /etc/kerb/node.key
    clientCA: /etc/kerb/clients.pem
    tokenFile: /etc/kerb/token
  oakestra: {}                          # the routes of Oakestra's network manager; docs/oakestra.md`,
		Example: `  kerb agent
  kerb agent --log-level debug --log-format json
  kerb agent --state /tmp/k/state --run /tmp/k/run --bpf /sys/fs/bpf/kerb-test`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.resolve(cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			if err := makeDirectories(c.Paths); err != nil {
				return err
			}
			log := newLogger(cmd.ErrOrStderr(), c.Log)
			slog.SetDefault(log)
			return a.build.Agent(cmd.Context(), c, log)
		},
	}
	f.addPaths(c)
	flags := c.Flags()
	flags.StringVar(&f.level, "log-level", "", "debug, info, warn or error")
	flags.StringVar(&f.format, "log-format", "", "text or json")
	flags.StringVar(&f.cgroup, "cgroup", "", "cgroup below which the services' sockets are")
	flags.StringVar(&f.group, "socket-group", "", "group that may use the socket")
	return c
}

// addPaths adds the flags that say which agent of the node is meant.
func (f *agentFlags) addPaths(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.config, "config", paths.Default().Config, "configuration file of the agent")
	flags.StringVar(&f.state, "state", "", "directory of durable state")
	flags.StringVar(&f.run, "run", "", "directory of the socket and the lock")
	flags.StringVar(&f.bpf, "bpf", "", "directory of pins, on a bpffs")
}

// resolve merges defaults, file and flags.
func (f agentFlags) resolve(required bool) (config.Config, error) {
	c, err := config.Load(f.config, required)
	if err != nil {
		return c, err
	}
	if err := errors.Join(makeAbsolute(&f.state), makeAbsolute(&f.run), makeAbsolute(&f.bpf)); err != nil {
		return c, err
	}
	override(&c.Paths.State, f.state)
	override(&c.Paths.Run, f.run)
	override(&c.Paths.BPF, f.bpf)
	override(&c.Log.Format, f.format)
	override(&c.SocketGroup, f.group)
	override(&c.Cgroup, f.cgroup)
	if f.level != "" {
		if err := c.Log.Level.UnmarshalText([]byte(f.level)); err != nil {
			return c, &fault.Invalid{Field: "log.level", Reason: fmt.Sprintf("%q is none of debug, info, warn and error", f.level)}
		}
	}
	return c, c.Check()
}

func override(value *string, flag string) {
	if flag != "" {
		*value = flag
	}
}

// makeDirectories makes what systemd makes for the unit. In the state directory every file is its owner's alone; others may
// pass through to the part that is a control plane's. The pins' directory is the agent's.
func makeDirectories(p paths.Paths) error {
	if err := os.MkdirAll(p.Run, 0o755); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(p.State), 0o755); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if err := os.MkdirAll(p.State, 0o711); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if info, err := os.Stat(p.State); err == nil && info.Mode().Perm() != 0o711 {
		_ = os.Chmod(p.State, 0o711) // of an older installation; on a read-only disk control planes will tell
	}
	return nil
}

func newLogger(w io.Writer, l config.Log) *slog.Logger {
	options := &slog.HandlerOptions{Level: l.Level}
	if l.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
