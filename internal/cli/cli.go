// SPDX-License-Identifier: Apache-2.0

// Package cli implements the commands of kerb: noun, then verb; results go to standard output, everything else to
// standard error. Commands use only the API of the agent, which `kerb agent` runs; a few work without an agent.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/doctor"
	"github.com/kerb-edge/kerb/internal/paths"
	"github.com/kerb-edge/kerb/internal/suggest"
)

// Exit codes. They do not change.
const (
	ExitOK          = 0
	ExitFailure     = 1 // errors without a code of their own
	ExitUsage       = 2 // invalid command line, resource or configuration
	ExitNotFound    = 3
	ExitUnreachable = 4 // no agent is reachable
	ExitConflict    = 5 // conflict with existing state, or the kernel rejected the program
)

// Build has the parts of the program that this package must not import.
type Build struct {
	Version string
	Agent   func(context.Context, config.Config, *slog.Logger) error // runs until the context ends
	// Purge removes the kernel state of integrations; nil without any.
	Purge func(paths.Paths) error
	// CheckOakestra connects to an Oakestra cluster, at an address if it is not empty, and looks up services.
	CheckOakestra func(ctx context.Context, c config.Config, cluster string, services []string) ([]doctor.Check, error)
	// ReportContainer waits until a container with an OCI state has its modules; with wait, also while the agent starts.
	ReportContainer func(ctx context.Context, socket string, state []byte, wait bool) error
	// ContainerState returns the OCI state of the container that a runtime with these arguments starts, or nil.
	ContainerState func(ctx context.Context, runtime string, args []string) ([]byte, error)
	// RefuseContainer ends this container before it starts.
	RefuseContainer func(runtime string, args []string, state []byte) error
}

// app is the state that commands share.
type app struct {
	build   Build
	socket  string
	server  string
	context string
	output  string
	json    bool
	verbose bool

	hangup      hangup
	socketGiven bool // by flag or environment variable
	endpoint    *endpoint
}

// Main runs the command of the process and returns its exit code.
func Main(b Build) int {
	a := &app{build: b}
	return a.execute(a.root())
}

// Execute is Main for other programs of Kerb, with the same signals, messages and exit codes.
func Execute(root *cobra.Command) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return plainFlagError(err) })
	finish(root)
	return new(app).execute(root)
}

// execute runs a command and returns the exit status. Interrupts cancel the command's context. SIGPIPE is ignored, so
// that `kerb ... | head` ends with a failed write, after which the command can clean up.
func (a *app) execute(root *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, end := a.onHangup(ctx)
	defer end()
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return ExitOK
	case isClosedPipe(err):
		return ExitFailure
	}
	return a.report(visible{root.ErrOrStderr()}, cmd, err)
}

// onHangup cancels a command when its terminal is closed, unless it runs under nohup(1) or uses SIGHUP otherwise.
func (a *app) onHangup(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	if !signal.Ignored(syscall.SIGHUP) {
		a.hangup.does(func() { cancel() })
	}
	return ctx, cancel
}

// hangup is the action on SIGHUP, set by does.
type hangup struct {
	action atomic.Value // func()
	listen sync.Once
}

func (h *hangup) does(action func()) {
	h.action.Store(action)
	h.listen.Do(func() {
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGHUP)
		go func() {
			for range signals {
				h.action.Load().(func())()
			}
		}()
	})
}

// isClosedPipe reports whether output failed because its reader has closed the pipe.
func isClosedPipe(err error) bool {
	at, ok := errors.AsType[*fs.PathError](err)
	return ok && at.Path == os.Stdout.Name() && errors.Is(err, syscall.EPIPE)
}

// Root returns the command tree, to generate documents from it.
func Root(b Build) *cobra.Command { return (&app{build: b}).root() }

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "kerb",
		Short: "Run the hot path of edge services in the kernel",
		Long: `kerb is the agent of a node and the command line to it. The agent loads, chains, replaces and monitors eBPF modules on the
services of the node, without modifying the services.

Exit status: 0 success, 1 failure, 2 usage error or invalid resource, 3 not found, 4 agent unreachable, 5 conflict or
rejected by the kernel.`,
		Example: `  kerb agent                              # as root, or: systemctl start kerb
  kerb service add web --netns /run/netns/web --label app=web
  kerb apply -f firewall.yaml
  kerb module list`,
		Version:       a.build.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.socket, "socket", defaultSocket(), "socket of the agent; also by KERB_SOCKET")
	flags.StringVar(&a.server, "server", os.Getenv("KERB_SERVER"), "agent of another node, https://HOST:PORT; also by "+
		"KERB_SERVER")
	flags.StringVar(&a.context, "context", os.Getenv("KERB_CONTEXT"), "agent of another node, by the name that kerb "+
		"context set gave it; also by KERB_CONTEXT")
	flags.StringVarP(&a.output, "output", "o", "table", "how to print the answer: table, wide, name, json or yaml")
	flags.BoolVarP(&a.json, "json", "j", false, "the same as -o json")
	flags.BoolVarP(&a.verbose, "verbose", "v", false, "print more to standard error: steps, verifier logs")
	_ = root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "wide", "name", "json", "yaml"},
		cobra.ShellCompDirectiveNoFileComp))
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return plainFlagError(err) })
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case cmd.Flags().Changed("socket"):
			a.server, a.context = "", ""
		case cmd.Flags().Changed("server"):
			a.context = ""
		case cmd.Flags().Changed("context"):
			a.server = ""
		}
		a.socketGiven = cmd.Flags().Changed("socket") || os.Getenv("KERB_SOCKET") != ""
		return a.checkOutput(cmd)
	}
	root.MarkFlagsMutuallyExclusive("socket", "server", "context")
	root.AddCommand(
		a.agentCommand(), a.applyCommand(), a.diffCommand(), a.deleteCommand(), a.getCommand(), a.exportCommand(),
		a.explainCommand(), a.schemaCommand(),
		a.chainCommand(), a.contextCommand(), a.newPackageCommand(), a.interceptCommand(), a.oakestraCommand(),
		a.containersCommand(),
		a.statusCommand(), a.changesCommand(), a.eventsCommand(), a.revertCommand(), a.historyCommand(), a.topCommand(),
		a.traceCommand(), a.lastDropsCommand(), a.flowsCommand(), a.uiCommand(),
		a.doctorCommand(),
		a.purgeCommand(), a.versionCommand(),
	)
	root.AddCommand(a.kindCommands()...)
	root.AddCommand(benchCommands()...)
	finish(root)
	return root
}

func defaultSocket() string {
	if socket := os.Getenv("KERB_SOCKET"); socket != "" {
		return socket
	}
	return paths.Default().Socket()
}

// plainFlagError rephrases the errors of Go's packages about values that are not numbers.
func plainFlagError(err error) error {
	number, ok := errors.AsType[*strconv.NumError](err)
	if !ok {
		return err
	}
	reason := "not a number"
	if errors.Is(err, strconv.ErrRange) {
		reason = "too large or too small"
	} else if number.Func == "ParseBool" {
		reason = "neither true nor false"
	}
	before, _, _ := strings.Cut(err.Error(), "strconv.")
	return errors.New(before + reason)
}

const answersMark = "kerb.dev/answers"

// answers marks a command that prints its result with app.print, which supports JSON and YAML. All others reject -o.
func answers(c *cobra.Command) *cobra.Command {
	c.Annotations = map[string]string{answersMark: "yes"}
	return c
}

// names marks a command that lists resources, and thus supports -o wide and -o name.
func names(c *cobra.Command) *cobra.Command {
	c.Annotations = map[string]string{answersMark: "names"}
	return c
}

// checkOutput rejects -o for commands that do not support it, since scripts would otherwise parse a table.
func (a *app) checkOutput(cmd *cobra.Command) error {
	if a.json {
		a.output = "json"
	}
	switch a.output {
	case "table":
		return nil
	case "wide", "name":
		if cmd.Annotations[answersMark] != "names" {
			return &usageError{fmt.Errorf("%s does not list resources: leave -o %s out", cmd.CommandPath(), a.output)}
		}
		return nil
	case "json", "yaml":
		if cmd.Annotations[answersMark] == "" {
			return &usageError{fmt.Errorf("%s has no answer in %s: omit -o", cmd.CommandPath(), a.output)}
		}
		return nil
	}
	if a.output == openMetrics && cmd.Annotations[answersMark] == openMetrics {
		return nil
	}
	return &usageError{fmt.Errorf("output %q: use table, wide, name, json or yaml", a.output)}
}

// noun returns a command that only has subcommands.
func noun(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := answers(&cobra.Command{
		Use:   use,
		Short: short,
		Args:  noSubcommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return &usageError{fmt.Errorf("%s needs a verb", cmd.CommandPath())}
		},
	})
	c.AddCommand(commands...)
	return c
}

// noSubcommand rejects arguments, and suggests similar subcommands.
func noSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var known []string
	for _, sub := range cmd.Commands() {
		known = append(append(known, sub.Name()), sub.Aliases...)
	}
	return fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(), suggest.DidYouMean(args[0], known))
}

// usageError is an error in the command line.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// runError is an error of a command that has run: not a usage error, unless it wraps one.
type runError struct{ error }

func (e *runError) Unwrap() error { return e.error }

// finish wraps the errors of all commands in runError, to distinguish them from cobra's errors about flags and
// arguments.
func finish(cmd *cobra.Command) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if err := run(cmd, args); err != nil {
				return &runError{err}
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		finish(sub)
	}
}

// exitCode maps errors to exit codes.
func exitCode(err error) int {
	switch {
	case !errors.As(err, new(*runError)), errors.As(err, new(*usageError)), errors.As(err, new(*apierrors.Invalid)):
		return ExitUsage
	case errors.As(err, new(*apierrors.NotFound)):
		return ExitNotFound
	case errors.As(err, new(*unreachableError)):
		return ExitUnreachable
	case errors.As(err, new(*apierrors.Conflict)), errors.As(err, new(*apierrors.PreconditionFailed)),
		errors.As(err, new(*apierrors.Rejected)):
		return ExitConflict
	}
	return ExitFailure
}

// report prints an error, with a remedy if one is known.
func (a *app) report(w io.Writer, cmd *cobra.Command, err error) int {
	code := exitCode(err)
	notFound, isNotFound := errors.AsType[*apierrors.NotFound](err)
	rejected, isRejected := errors.AsType[*apierrors.Rejected](err)
	if isRejected && a.verbose {
		fmt.Fprintln(w, rejected.Log) // before the error, which would scroll away: the log may have thousands of lines
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(w, "kerb:", strings.TrimSuffix(line, "\n"))
	}
	switch {
	case !errors.As(err, new(*runError)), errors.As(err, new(*usageError)):
		fmt.Fprintf(w, "Run %q for usage.\n", cmd.CommandPath()+" --help")
	case isRejected && !a.verbose && rejected.Log != "":
		saveLog(w, rejected.Log)
	case isNotFound && notFound.Name != "" && cmd.HasParent() && cmd.Parent().HasParent():
		list, _, err := cmd.Parent().Find([]string{"list"})
		if err != nil || list == cmd.Parent() { // commands of a package are about modules
			list, _, _ = cmd.Root().Find([]string{"module", "list"})
		}
		fmt.Fprintf(w, "Run %q for the list.\n", list.CommandPath())
	case code == ExitFailure && errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		fmt.Fprintln(w, "You are not root, as this needs.")
	case code == ExitFailure && errors.Is(err, fs.ErrPermission):
		fmt.Fprintln(w, "Running as root but missing a capability (in a container?). \"kerb doctor\" lists which.")
	}
	return code
}

// keptLogs is the number of verifier logs that are kept in the directory of temporary files.
const keptLogs = 5

// removeOldLogs removes the logs of earlier commands of this user.
func removeOldLogs() {
	all, _ := filepath.Glob(filepath.Join(os.TempDir(), "kerb-verifier-*.log"))
	at := map[string]time.Time{}
	all = slices.DeleteFunc(all, func(path string) bool {
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
			return true
		}
		at[path] = info.ModTime()
		return false
	})
	sort.Slice(all, func(i, j int) bool { return at[all[i]].After(at[all[j]]) })
	for _, path := range all[min(keptLogs-1, len(all)):] {
		_ = os.Remove(path)
	}
}

// saveLog writes the verifier's log to a file.
func saveLog(w io.Writer, log string) {
	removeOldLogs()
	f, err := os.CreateTemp("", "kerb-verifier-*.log")
	if err == nil {
		_, err = f.WriteString(log)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		fmt.Fprintln(w, "The verifier's log could not be saved; run again with -v to see it:", err)
		return
	}
	fmt.Fprintf(w, "The verifier's log is in %s; -v prints it.\n", f.Name())
}
