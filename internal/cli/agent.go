// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/paths"
	"github.com/kerb-edge/kerb/internal/serve"
)

// agentFlags override the configuration file unless they are empty.
type agentFlags struct {
	config, state, run, bpf string
	level, format, group    string
	cgroup                  string
}

func (a *app) agentCommand() *cobra.Command {
	f, check := agentFlags{}, false
	c := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of this node",
		Long: `Runs the agent in the foreground until SIGTERM or Ctrl-C. Programs that it has loaded keep running
without it, and the next agent takes them over. SIGHUP (systemctl reload kerb) reads the configuration again: log.level, and the
certificates, keys and tokens of tcp, change while the agent runs; of other fields it logs that they need a restart.

The configuration file may hold:

  paths: {state: /var/lib/kerb, run: /run/kerb, bpf: /sys/fs/bpf/kerb}
  log: {level: info, format: text}      # debug, info, warn, error; text, json
  socketGroup: kerb                     # may use the socket, if there is such a group
  cgroup: /                             # cgroup v2: modules on sockets look for the services' sockets below it
  limits: {controlMemory: 512Mi, controlDisk: 1Gi}   # maximum that packages may request for their control planes
  tcp:                                  # only with TLS, and clientCA, tokenFile or metricsTokenFile
    address: 192.0.2.1:4600
    certificate: /etc/kerb/node.pem
    key: /etc/kerb/node.key
    clientCA: /etc/kerb/clients.pem
    tokenFile: /etc/kerb/token
  containers: {runtime: docker}         # or podman: its containers become services; docs/containers.md
  history: {}                           # samples for kerb history, 32 MiB of disk
  oakestra: {}                          # the routes of Oakestra's network manager; docs/oakestra.md`,
		Example: `  kerb agent
  kerb agent --check
  kerb agent --log-level debug --log-format json
  kerb agent --state /tmp/k/state --run /tmp/k/run --bpf /sys/fs/bpf/kerb-test`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.resolve(cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			if check {
				return checkAgent(cmd.OutOrStdout(), c)
			}
			if err := makeDirectories(c.Paths); err != nil {
				return err
			}
			level := new(slog.LevelVar)
			level.Set(c.Log.Level)
			log := newLogger(cmd.ErrOrStderr(), c.Log.Format, level)
			slog.SetDefault(log)
			c.Reloads = &config.Reloads{}
			c.Reloads.Subscribe(func(next config.Config) error { level.Set(next.Log.Level); return nil })
			a.hangup.does(func() { f.reload(c, log) })
			return a.build.Agent(cmd.Context(), c, log)
		},
	}
	f.addPaths(c)
	flags := c.Flags()
	flags.BoolVar(&check, "check", false, "only check the configuration and the files that it names")
	flags.StringVar(&f.level, "log-level", "", "debug, info, warn or error")
	flags.StringVar(&f.format, "log-format", "", "text or json")
	flags.StringVar(&f.cgroup, "cgroup", "", "cgroup below which the services' sockets are")
	flags.StringVar(&f.group, "socket-group", "", "group that may use the socket")
	return c
}

// checkAgent reads the files that a valid configuration refers to.
func checkAgent(w io.Writer, c config.Config) error {
	listeners := []*config.TCP{c.TCP}
	if c.Oakestra != nil {
		listeners = append(listeners, c.Oakestra.TLS)
	}
	for _, l := range listeners {
		if l == nil {
			continue
		}
		if err := serve.CheckTCP(*l); err != nil {
			return c.Locate(err)
		}
	}
	_, err := fmt.Fprintf(w, "%s: ok\n", c.Paths.Config)
	return err
}

// reload reads the configuration again and applies it. If it is invalid, reload logs the error and changes nothing.
func (f agentFlags) reload(was config.Config, log *slog.Logger) {
	next, err := f.resolve(false)
	if err != nil {
		log.Error("configuration not reloaded", "error", err)
		return
	}
	if err := was.Reloads.Publish(next); err != nil {
		log.Error("configuration not reloaded completely", "error", err)
		return
	}
	log.Info("configuration reloaded")
	if fields := was.RestartFields(next); len(fields) > 0 {
		log.Warn("changed fields take effect when the agent is restarted", "fields", fields)
	}
}

// addPaths adds the flags that select one of several agents of the node.
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
			return c, &apierrors.Invalid{Field: "log.level", Reason: fmt.Sprintf("%q is not one of debug, info, "+
				"warn and error", f.level)}
		}
	}
	return c, c.Check()
}

func override(value *string, flag string) {
	if flag != "" {
		*value = flag
	}
}

// makeDirectories creates the directories that systemd creates for the unit. Files in the state directory are
// accessible to their owner only; other users may traverse it, so that control planes reach their part.
func makeDirectories(p paths.Paths) error {
	if err := os.MkdirAll(p.Run, 0o755); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(p.State), 0o755), os.MkdirAll(p.State, 0o711)); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if info, err := os.Stat(p.State); err == nil && info.Mode().Perm() != 0o711 {
		_ = os.Chmod(p.State, 0o711) // made by an older version; on a read-only disk control planes report the error
	}
	return nil
}

func newLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
