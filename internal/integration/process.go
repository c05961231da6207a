// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/integration/link"
)

// Main is what an integration does in its process until ctx ends. options is the JSON of what the agent started it
// with.
type Main func(ctx context.Context, options []byte, log *slog.Logger, agent *link.Agent) error

const (
	self           = "/proc/self/exe" // this binary, even if its file was replaced or removed
	confineCommand = "integration"
	runCommand     = "integration-run"
)

// reportFile is the descriptor of a pipe to the agent, to which a process writes reports (link.Report). Requests of the
// agent come by its standard input.
const reportFile = 3

// Intercept makes this process the integration that the agent has started it as, or returns. It is called first in
// main.
func Intercept(all map[string]Main) {
	args := os.Args
	if len(args) < 4 || args[1] != confineCommand && args[1] != runCommand {
		return
	}
	name, options := args[2], args[3]
	main, known := all[name]
	err := fmt.Errorf("there is no integration %q", name)
	switch {
	case known && args[1] == confineCommand && len(args) == 5:
		err = confine(name, options, args[4])
	case known && args[1] == runCommand:
		err = run(main, []byte(options))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// capabilities are those that an integration keeps: to configure interfaces, nftables and conntrack, in the namespaces
// of services too, to give its socket to a group, and to enter the mount namespace of the node (if the agent may).
var capabilities = []uintptr{unix.CAP_NET_ADMIN, unix.CAP_SYS_ADMIN, unix.CAP_SYS_PTRACE, unix.CAP_CHOWN,
	unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT}

// confine gives up all other capabilities for good, and continues as the integration itself. The thread that calls
// execve becomes the process, so that only this one has to change.
func confine(name, options, agent string) error {
	runtime.LockOSThread()
	parent, err := strconv.Atoi(agent)
	if err != nil {
		return err
	}
	for c := uintptr(0); ; c++ {
		if slices.Contains(capabilities, c) {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > unix.CAP_BPF { // after the kernel's last one
			break
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	// systemd protects the agent from the OOM killer; that is not for integrations.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("0"), 0)
	if err := sandbox.EndWith(parent); err != nil {
		return fmt.Errorf("end with the agent: %w", err)
	}
	return fmt.Errorf("execute %s: %w", self, syscall.Exec(self, []string{"kerb", runCommand, name, options},
		os.Environ()))
}

// run logs everything as JSON, from which the agent chooses by its own level.
func run(main Main, options []byte) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	slog.SetDefault(log)
	pipe := os.NewFile(reportFile, "report")
	syscall.CloseOnExec(reportFile)
	return main(ctx, options, log, link.NewAgent(os.Stdin, pipe))
}
