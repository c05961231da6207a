// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/resource"
)

// kind describes how resources of one kind, chains or packages are listed and described.
type kind struct {
	resource.Names
	all          bool // part of `kerb get all`
	narrow, wide []any
	decode       func(data []byte) (any, error)
	id           func(any) string
	row          func(any) (narrow, wide []any)
	describe     func(io.Writer, any)
}

// kindOf returns the kind of resources.
func kindOf(of resource.Kind) kind {
	k := kind{Names: of.Names(), all: true}
	k.narrow, k.wide = of.Header()
	k.decode = func(data []byte) (any, error) {
		o := of.New()
		return o, decodeAnswer(data, o)
	}
	k.id = func(v any) string { return v.(resource.Object).Meta().Name }
	k.row = func(v any) (narrow, wide []any) { return of.Row(v.(resource.Object)) }
	k.describe = descriptions[of]
	if k.describe == nil {
		k.describe = k.describePlainly
	}
	return k
}

// viewOf returns the kind for objects that are not resources.
func viewOf[T any](noun string, header []any, row func(T) []any, describe func(io.Writer, T)) kind {
	return kind{
		Names:  resource.Names{Noun: noun, Plural: noun + "s", Words: noun},
		narrow: header,
		decode: func(data []byte) (any, error) {
			var v T
			return v, decodeAnswer(data, &v)
		},
		id:       func(v any) string { return fmt.Sprint(row(v.(T))[0]) },
		row:      func(v any) (narrow, wide []any) { return row(v.(T)), nil },
		describe: func(w io.Writer, v any) { describe(w, v.(T)) },
	}
}

// descriptions are the describe functions of kinds with more fields than their table shows.
var descriptions = map[resource.Kind]func(io.Writer, any){
	resource.Module:         describing(describeModule),
	resource.Service:        describing(describeService),
	resource.VirtualService: describing(describeVirtualService),
	resource.Model:          describing(describeModel),
	resource.Set:            describing(describeSet),
}

func describing[T any](describe func(io.Writer, T)) func(io.Writer, any) {
	return func(w io.Writer, v any) { describe(w, *v.(*T)) }
}

// describePlainly prints the row of a resource and its content.
func (k kind) describePlainly(w io.Writer, v any) {
	narrow, wide := k.row(v)
	for i, name := range slices.Concat(k.narrow, k.wide) {
		field(w, fmt.Sprint(name), slices.Concat(narrow, wide)[i])
	}
	fmt.Fprintf(w, "\n%s", yamlOf(v.(resource.Object).Content()))
}

// verbs returns additional commands of kinds.
func (a *app) verbs() map[resource.Kind][]*cobra.Command {
	return map[resource.Kind][]*cobra.Command{
		resource.Module:  {a.dropsCommand(), a.countsCommand(), a.queryCommand(), a.valuesCommand(), a.setCommand()},
		resource.Service: {a.serviceAddCommand()},
		resource.Set:     a.setCommands(),
		resource.Model: append(a.modelAuthorCommands(), a.modelLoadCommand(), a.modelDescribeCommand(),
			a.modelRollbackCommand()),
	}
}

// kindCommands returns the commands of all kinds of resources.
func (a *app) kindCommands() (all []*cobra.Command) {
	verbs := a.verbs()
	for _, of := range resource.Kinds() {
		k := kindOf(of)
		c := noun(k.Noun, k.Short, append(verbs[of], k.list(a), k.get(a), k.delete(a))...)
		c.Aliases = k.Aliases
		all = append(all, c)
	}
	return all
}

func (k kind) path() string { return "/v1/" + k.Plural }

func (k kind) list(a *app) *cobra.Command {
	var watch bool
	c := names(&cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List all " + k.Noun + "s",
		Example: "  kerb " + k.Noun + " list\n  kerb " + k.Noun + " list -o yaml\n  kerb " + k.Noun + " list --watch",
		Args:    noSubcommand,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.repeat(cmd, watch, func(w io.Writer) error { return k.printAll(cmd.Context(), a, w) })
		},
	})
	addWatch(c, &watch)
	return c
}

func (k kind) get(a *app) *cobra.Command {
	var watch bool
	c := names(&cobra.Command{
		Use:               "get [NAME]",
		Aliases:           []string{"show"},
		Short:             "Show one " + k.Noun + ", or list all",
		Example:           "  kerb " + k.Noun + " get NAME\n  kerb " + k.Noun + " show NAME -o json",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: k.complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.repeat(cmd, watch, func(w io.Writer) error { return k.print(cmd.Context(), a, w, args) })
		},
	})
	addWatch(c, &watch)
	return c
}

// print prints the named objects, or all.
func (k kind) print(ctx context.Context, a *app, w io.Writer, names []string) error {
	if len(names) == 0 {
		return k.printAll(ctx, a, w)
	}
	data, err := a.call(ctx, http.MethodGet, k.path()+"/"+url.PathEscape(names[0]), nil)
	if err != nil {
		return err
	}
	got, err := k.decode(data)
	if err != nil {
		return err
	}
	return a.print(w, got, func(w io.Writer) {
		switch a.output {
		case "name":
			fmt.Fprintln(w, k.Noun+"/"+k.id(got))
		default:
			k.describe(w, got)
		}
	})
}

// fetchAll reads all objects from the agent.
func (k kind) fetchAll(ctx context.Context, a *app) ([]any, error) {
	texts, err := fetch[[]json.RawMessage](ctx, a, k.path())
	if err != nil {
		return nil, err
	}
	all := make([]any, len(texts))
	for i, text := range texts {
		if all[i], err = k.decode(text); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (k kind) printAll(ctx context.Context, a *app, w io.Writer) error {
	all, err := k.fetchAll(ctx, a)
	if err != nil {
		return err
	}
	return a.print(w, all, func(w io.Writer) {
		if a.output == "name" {
			for _, v := range all {
				fmt.Fprintln(w, k.Noun+"/"+k.id(v))
			}
			return
		}
		print := func(narrow, wide []any) {
			if a.output == "wide" {
				narrow = slices.Concat(narrow, wide)
			}
			line(w, narrow...)
		}
		print(k.narrow, k.wide)
		for _, v := range all {
			print(k.row(v))
		}
	})
}

func (k kind) delete(a *app) *cobra.Command {
	var dryRun bool
	c := answers(&cobra.Command{
		Use:               "delete NAME...",
		Aliases:           []string{"rm"},
		Short:             "Delete " + k.Noun + "s: all that are named, or none",
		Example:           "  kerb " + k.Noun + " delete NAME\n  kerb " + k.Noun + " delete --dry-run NAME NAME",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: k.complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			refs := make([]resource.Ref, len(args))
			for i, name := range args {
				refs[i] = resource.Ref{Kind: k.Kind, Name: name}
			}
			return a.changeAndPrint(cmd, http.MethodPost, "/v1/delete", dryRun, refs)
		},
	})
	addDryRun(c, &dryRun)
	return c
}

// complete completes the names of existing objects.
func (k kind) complete(a *app) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		all, err := k.fetchAll(cmd.Context(), a)
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
