// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/server"
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

	wideHeader []any // further columns of -o wide
	wideRow    func(T) []any
}

func (k kind[T]) list(a *app) *cobra.Command {
	var watch bool
	c := names(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all " + k.noun + "s",
		Example: "  kerb " + k.noun + " list\n  kerb " + k.noun + " list -o yaml\n  kerb " + k.noun + " list --watch",
		Args:    noSubcommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.repeat(cmd, watch, func(w io.Writer) error { return k.printAll(cmd.Context(), a, w) })
		},
	})
	addWatch(c, &watch)
	return c
}

func (k kind[T]) get(a *app) *cobra.Command {
	var watch bool
	c := names(&cobra.Command{
		Use:               "get [NAME]",
		Aliases:           []string{"show"},
		Short:             "Show one " + k.noun + ", or list all",
		Example:           "  kerb " + k.noun + " get NAME\n  kerb " + k.noun + " show NAME -o json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: k.complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.repeat(cmd, watch, func(w io.Writer) error { return k.print(cmd.Context(), a, w, args) })
		},
	})
	addWatch(c, &watch)
	return c
}

// print prints the one that is named, or all.
func (k kind[T]) print(ctx context.Context, a *app, w io.Writer, names []string) error {
	if len(names) == 0 {
		return k.printAll(ctx, a, w)
	}
	got, err := fetch[T](ctx, a, k.path+"/"+url.PathEscape(names[0]))
	if err != nil {
		return err
	}
	return a.print(w, got, func(w io.Writer) {
		switch a.output {
		case "name":
			fmt.Fprintln(w, k.noun+"/"+k.id(got))
		default:
			k.describe(w, got)
		}
	})
}

func (k kind[T]) printAll(ctx context.Context, a *app, w io.Writer) error {
	all, err := fetch[[]T](ctx, a, k.path)
	if err != nil {
		return err
	}
	return a.print(w, all, func(w io.Writer) {
		switch {
		case a.output == "name":
			for _, v := range all {
				fmt.Fprintln(w, k.noun+"/"+k.id(v))
			}
		case a.output == "wide" && k.wideRow != nil:
			line(w, slices.Concat(k.header, k.wideHeader)...)
			for _, v := range all {
				line(w, slices.Concat(k.row(v), k.wideRow(v))...)
			}
		default:
			line(w, k.header...)
			for _, v := range all {
				line(w, k.row(v)...)
			}
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

func addDryRun(c *cobra.Command, dryRun *bool) {
	c.Flags().BoolVar(dryRun, "dry-run", false, "only show what would happen")
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
