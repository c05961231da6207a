// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/kerb-edge/kerb/internal/server"
	"github.com/spf13/cobra"
)

// kind is how one kind of thing is listed, described and deleted.
type kind[T any] struct {
	name     string // kind of a resource as deleted, for example Module
	noun     string // for people: module
	path     string // /v1/modules
	header   []any
	row      func(T) []any
	describe func(io.Writer, T)
	id       func(T) string
}

func (k kind[T]) list(a *app) *cobra.Command {
	return answers(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all " + k.noun + "s",
		Example: "  kerb " + k.noun + " list\n  kerb " + k.noun + " list -o yaml",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return k.printAll(a, cmd) },
	})
}

func (k kind[T]) get(a *app) *cobra.Command {
	return answers(&cobra.Command{
		Use:               "get [NAME]",
		Aliases:           []string{"show"},
		Short:             "Show one " + k.noun + ", or list all",
		Example:           "  kerb " + k.noun + " get NAME\n  kerb " + k.noun + " show NAME -o json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: k.complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return k.printAll(a, cmd)
			}
			got, err := fetch[T](cmd.Context(), a, k.path+"/"+url.PathEscape(args[0]))
			if err != nil {
				return err
			}
			return a.print(cmd.OutOrStdout(), got, func(w io.Writer) { k.describe(w, got) })
		},
	})
}

func (k kind[T]) printAll(a *app, cmd *cobra.Command) error {
	all, err := fetch[[]T](cmd.Context(), a, k.path)
	if err != nil {
		return err
	}
	return a.print(cmd.OutOrStdout(), all, func(w io.Writer) {
		line(w, k.header...)
		for _, v := range all {
			line(w, k.row(v)...)
		}
	})
}

func (k kind[T]) delete(a *app) *cobra.Command {
	var dryRun bool
	c := answers(&cobra.Command{
		Use:               "delete NAME...",
		Aliases:           []string{"rm"},
		Short:             "Delete " + k.noun + "s: all that are named, or none",
		Example:           "  kerb " + k.noun + " delete NAME\n  kerb " + k.noun + " delete --dry-run NAME NAME",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: k.complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			refs := make([]server.Ref, len(args))
			for i, name := range args {
				refs[i] = server.Ref{Kind: k.name, Name: name}
			}
			result, err := a.change(cmd.Context(), http.MethodPost, "/v1/delete", dryRun, refs)
			if err != nil {
				return err
			}
			return a.printResult(cmd, result)
		},
	})
	addDryRun(c, &dryRun)
	return c
}

// complete offers the names that there are.
func (k kind[T]) complete(a *app) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		all, err := fetch[[]T](cmd.Context(), a, k.path)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := make([]string, len(all))
		for i, v := range all {
			names[i] = k.id(v)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// first completes only the first argument.
func first(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, begun)
	}
}

func addDryRun(c *cobra.Command, dryRun *bool) {
	c.Flags().BoolVar(dryRun, "dry-run", false, "only tell what would happen")
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
