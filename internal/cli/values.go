// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/resource"
)

func (a *app) valuesCommand() *cobra.Command {
	return answers(&cobra.Command{
		Use:               "values NAME",
		Short:             "Show the values that can be set while a module runs",
		Example:           "  kerb module values sign",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: kindOf(resource.Module).complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(cmd, a, valuesPath(args[0]), printValues)
		},
	})
}

func printValues(w io.Writer, values []map[string]any) {
	line(w, "PATH", "VALUE")
	for _, v := range values {
		line(w, inCell(v["path"]), inCell(v["value"]))
	}
}

func (a *app) setCommand() *cobra.Command {
	return answers(&cobra.Command{
		Use:   "set NAME PATH=VALUE...",
		Short: "Set values of a module while it runs",
		Long: "Sets values of the module: `kerb module values NAME` lists them. Stops at the first value that " +
			"is refused.",
		Example:           "  kerb module set sign sign/cars=12\n  kerb module set things things/sensors/temperature=21.5",
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: kindOf(resource.Module).complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			set := map[string]string{}
			for _, assignment := range args[1:] {
				path, value, ok := strings.Cut(assignment, "=")
				if !ok || path == "" {
					return &usageError{fmt.Errorf("%q is not PATH=VALUE", assignment)}
				}
				if err := a.setValue(cmd, args[0], path, value); err != nil {
					return partlySet(set, path, err)
				}
				set[path] = value
			}
			return a.print(cmd.OutOrStdout(), set, func(w io.Writer) {
				for _, path := range sortedKeys(set) {
					fmt.Fprintf(w, "%s set\n", path)
				}
			})
		},
	})
}

// partlySet adds the values that were already set to the error of one value.
func partlySet(set map[string]string, path string, err error) error {
	if len(set) > 0 {
		return fmt.Errorf("%s: %w; set before it: %s", path, err, strings.Join(sortedKeys(set), ", "))
	}
	return fmt.Errorf("%s: %w", path, err)
}

func (a *app) setValue(cmd *cobra.Command, module, path, value string) error {
	body, err := json.Marshal(map[string]string{"value": value})
	if err == nil {
		_, err = a.call(cmd.Context(), http.MethodPut, valuesPath(module)+"/"+escapePath(path), body)
	}
	return err
}

func valuesPath(module string) string { return "/v1/modules/" + url.PathEscape(module) + "/values" }

// escapePath escapes the segments of a path.
func escapePath(path string) string {
	parts := strings.Split(path, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}
