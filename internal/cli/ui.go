// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/ui"
)

func (a *app) uiCommand() *cobra.Command {
	var port int
	var write, open bool
	c := &cobra.Command{
		Use:   "ui",
		Short: "Show the node in a browser: problems, services, packets, changes",
		Long: "Serves a page on 127.0.0.1 until interrupted, and prints its address, which opens the page in one browser. " +
			"The page\nhas the rights of this command on the agent, and is read-only unless --write lets it revert changes.\n" +
			"The agent itself serves no page.",
		Example: "  kerb ui\n  kerb ui --open --write\n  kerb ui --port 7180     # with ssh -L 7180:127.0.0.1:7180",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if port < 0 || port > 65535 {
				return &usageError{fmt.Errorf("--port %d: must be from 0 to 65535", port)}
			}
			ctx, notes := cmd.Context(), cmd.ErrOrStderr()
			if _, err := a.agentEndpoint(); err != nil {
				return err
			}
			s, l, err := ui.Listen(ctx, port, ui.Options{Agent: a.request, Write: write, Used: func(next string) {
				fmt.Fprintf(notes, "the page was opened; for another browser: %s\n", next)
			}})
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), s.URL())
			fmt.Fprintf(notes, "Open this address in a browser of this machine; it works once. From another machine, first: "+
				"ssh -L %[1]s:127.0.0.1:%[1]s HOST\nInterrupt with Ctrl-C.\n", l.Addr().String()[len("127.0.0.1:"):])
			if open {
				end, err := openBrowser(ctx, s.URL())
				defer end()
				if err != nil {
					fmt.Fprintf(notes, "no browser was started: %v\n", err)
				}
			}
			return s.Serve(ctx, l)
		},
	}
	c.Flags().IntVar(&port, "port", 0, "port of 127.0.0.1 (0: any)")
	c.Flags().BoolVar(&write, "write", false, "let the page revert changes")
	c.Flags().BoolVar(&open, "open", false, "open the page in the desktop's browser")
	return c
}

// openBrowser opens a URL through a local file that redirects to it, since other users can read command lines.
func openBrowser(ctx context.Context, url string) (end func(), err error) {
	dir, err := os.MkdirTemp("", "kerb-ui-")
	if err != nil {
		return func() {}, err
	}
	end = func() { _ = os.RemoveAll(dir) }
	file := filepath.Join(dir, "open.html")
	text := fmt.Sprintf(`<!doctype html><meta http-equiv="refresh" content="0;url=%s">`, url)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return end, err
	}
	c := exec.CommandContext(ctx, "xdg-open", file)
	c.Stdout, c.Stderr = io.Discard, io.Discard
	if err := c.Start(); err != nil {
		return end, err
	}
	go func() { _ = c.Wait() }()
	return end, nil
}
