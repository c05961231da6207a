// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/kerb-edge/kerb/integrations/kubernetes/conflist"
)

const usage = `kerb-cni is a chained CNI plugin, which container runtimes execute. Its commands put it into the node's network:

  kerb-cni install [--conf DIR] [--bin DIR] [--socket PATH] [--watch]
  kerb-cni uninstall [--conf DIR] [--bin DIR]

install copies the program to --bin and writes 00-kerb.conflist: the first other network of --conf with kerb-cni at the
end of its plugins. With --watch it continues, and does so again whenever that network or the program changes.
uninstall removes 00-kerb.conflist, and the program if --bin is given.

`

// Main executes a command of the operator, or without arguments the CNI command in the environment. It returns the exit
// status.
func Main(args []string) int {
	if len(args) == 0 {
		return run()
	}
	err := command(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(os.Stderr, "kerb-cni:", err)
		return 1
	}
	return 0
}

// command is for operators and the installer's pod; the container runtime names its commands by CNI_COMMAND.
func command(args []string) error {
	flags := flag.NewFlagSet(Name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	n := conflist.Network{Plugin: Name}
	flags.StringVar(&n.Dir, "conf", "/etc/cni/net.d", "configurations of networks")
	flags.StringVar(&n.Bin, "bin", "", "programs of plugins")
	flags.StringVar(&n.Socket, "socket", DefaultSocket, "socket of the agent")
	watch := flags.Bool("watch", false, "continue, and write it again whenever the network changes")
	name := args[0]
	err := flags.Parse(args[1:])
	if errors.Is(err, flag.ErrHelp) || name == "help" || name == "--help" || name == "-h" {
		fmt.Print(usage)
		return flag.ErrHelp
	}
	if err == nil && flags.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	switch {
	case err != nil:
		return fmt.Errorf("%w; see kerb-cni help", err)
	case name == "uninstall":
		return n.Uninstall()
	case name != "install":
		return fmt.Errorf("unknown command %q; see kerb-cni help", name)
	}
	if n.Bin == "" {
		n.Bin = "/opt/cni/bin"
	}
	if !*watch {
		return n.Install()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return n.Watch(ctx, func(err error) { fmt.Fprintln(os.Stderr, "kerb-cni:", err) })
}
