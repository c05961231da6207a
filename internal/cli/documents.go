// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

func (a *app) versionCommand() *cobra.Command {
	return answers(&cobra.Command{
		Use:     "version",
		Short:   "Show the version of this program",
		Example: "  kerb version\n  kerb version -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := map[string]string{
				"version": a.build.Version, "api": v1alpha1.APIVersion, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
			}
			return a.print(cmd.OutOrStdout(), v, func(w io.Writer) {
				fmt.Fprintf(w, "kerb %s (%s, %s, %s)\n", v["version"], v["api"], v["go"], v["platform"])
			})
		},
	})
}

func manCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "man DIR",
		Short:   "Write the manual pages into a directory",
		Example: "  kerb man /usr/local/share/man/man1",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // the same tree gives the same pages
			return doc.GenManTree(root, &doc.GenManHeader{Title: "KERB", Section: "1", Source: "Kerb", Manual: "Kerb manual"}, args[0])
		},
	}
}
