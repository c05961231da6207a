// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"

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
				"version": a.build.Version, "api": v1alpha1.APIVersion, "go": runtime.Version(), "platform": runtime.GOOS + "/" +
					runtime.GOARCH,
			}
			return a.print(cmd.OutOrStdout(), v, func(w io.Writer) {
				fmt.Fprintf(w, "kerb %s (%s, %s, %s)\n", v["version"], v["api"], v["go"], v["platform"])
			})
		},
	})
}
