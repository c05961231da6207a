// SPDX-License-Identifier: Apache-2.0

// Package cli is the command tree of kerb: noun then verb, the answer on standard output and all else on standard
// error. It speaks to the agent over its socket only; `kerb agent` is the agent itself, and few commands need none.
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
	ExitFailure     = 1 // everything that has no code of its own
	ExitUsage       = 2 // wrong command line, or a resource or configuration that is not valid
	ExitNotFound    = 3
	ExitUnreachable = 4 // no agent answers
	ExitConflict    = 5 // does not go with what is there, or the kernel refused the program
)

// Build is what the program consists of alongside this package.
type Build struct {
	Version string
	Agent   func(context.Context, config.Config, *slog.Logger) error // runs until the context ends
	// removes what integrations have in the kernel; nil without any
	Purge func(paths.Paths) error
	// speaks to an Oakestra cluster, at an address if it is not empty, and looks up services
	CheckOakestra func(ctx context.Context, c config.Config, cluster string, services []string) ([]doctor.Check, error)
	// waits until a container with an OCI state has its modules, also while the agent of the socket starts if wait is set
	ReportContainer func(ctx context.Context, socket string, state []byte, wait bool) error
	// returns the OCI state of the container that arguments of a runtime start, or nil
	ContainerState func(ctx context.Context, runtime string, args []string) ([]byte, error)
	// ends this container, which must not start
	RefuseContainer func(runtime string, args []string, state []byte) error
}

// app is what the commands share.
type app struct {
	build   Build
	socket  string
	server  string
	context string
	output  string
	json    bool
	verbose bool

	hangup      hangup
	socketGiven bool // by flag or variable
	endpoint    *endpoint
}

// Main runs the command line of the process and returns its exit code.
func Main(b Build) int {
	a := &app{build: b}
	return a.execute(a.root())
}

// Execute is Main for another program of Kerb: signals, messages and exit codes are the same.
func Execute(root *cobra.Command) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return plainFlagError(err) })
	finish(root)
	return new(app).execute(root)
}

// execute runs a command and returns the exit status. Interrupts cancel the command's context. SIGPIPE is turned off,
// so that `kerb ... | head` ends by a failed write, and what the command has made is removed.
func (a *app) execute(root *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a write fails, and what was made is removed in order
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

// onHangup ends a command in order when its terminal is closed, unless nohup(1) is in between or the command has
// another use for the signal.
func (a *app) onHangup(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	if !signal.Ignored(syscall.SIGHUP) {
		a.hangup.does(func() { cancel() })
	}
	return ctx, cancel
}

// hangup is what SIGHUP does, from the first call of does on.
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

// Root returns the command tree, for documents made from it.
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

// plainFlagError says in words what Go's packages say of a value that is no number.
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

// answers marks a command that prints what it has to say by app.print, as JSON and YAML too. All others refuse to.
func answers(c *cobra.Command) *cobra.Command {
	c.Annotations = map[string]string{answersMark: "yes"}
	return c
}

// names marks a command that lists resources, which -o wide and -o name can print.
func names(c *cobra.Command) *cobra.Command {
	c.Annotations = map[string]string{answersMark: "names"}
	return c
}

// checkOutput refuses -o for commands that have no such answer: scripts would otherwise parse a table.
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

// noun makes a command that only has subcommands.
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

// noSubcommand refuses arguments, and suggests the subcommand that was probably meant.
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

// usageError is a mistake on the command line.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// runError is an error of a command that has run: not a usage error, unless it wraps one.
type runError struct{ error }

func (e *runError) Unwrap() error { return e.error }

// finish marks errors of all commands, so that what is left is cobra's own: wrong flags and arguments.
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

// exitCode is the one place that maps errors to exit codes.
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

// report reports what went wrong, and what to do where that is known.
func (a *app) report(w io.Writer, cmd *cobra.Command, err error) int {
	code := exitCode(err)
	notFound, isNotFound := errors.AsType[*apierrors.NotFound](err)
	rejected, isRejected := errors.AsType[*apierrors.Rejected](err)
	if isRejected && a.verbose {
		fmt.Fprintln(w, rejected.Log) // first: it may have thousands of lines, and the sentence must be seen
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

// keptLogs is how many verifier logs stay in the directory of temporary files.
const keptLogs = 5

// removeOldLogs removes logs of this user's earlier commands.
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

// saveLog keeps the verifier's log in a file.
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
