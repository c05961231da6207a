// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/suggest"
)

// shownKinds returns all kinds of `kerb get`, in the order of `kerb get all`.
func shownKinds() (out []kind) {
	for _, of := range resource.Kinds() {
		out = append(out, kindOf(of))
	}
	return append(out, chainKind(), packageKind())
}

// findKind returns the kind with a name in singular, plural or short form, ignoring case.
func findKind(name string) (kind, error) {
	var known, plurals []string
	for _, k := range shownKinds() {
		names := append([]string{k.Plural, k.Noun}, k.Aliases...)
		if slices.Contains(names, strings.ToLower(name)) {
			return k, nil
		}
		known, plurals = append(known, names...), append(plurals, k.Plural)
	}
	there := strings.Join(plurals, ", ")
	return kind{}, &usageError{fmt.Errorf("no kind %q; kinds are %s and all%s", name, there,
		suggest.DidYouMean(name, known))}
}

func (a *app) getCommand() *cobra.Command {
	var watch bool
	c := names(&cobra.Command{
		Use:   "get KIND [NAME]",
		Short: "Show resources of a kind, one of them, or all of the node",
		Long:  "Shows " + listing(shownKinds()) + "; or all but packages.",
		Example: `  kerb get modules
  kerb get module fw -o yaml
  kerb get services -o wide --watch
  kerb get all`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: a.completeKinds,
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "all" {
				return a.getAll(cmd, args[1:], watch)
			}
			k, err := findKind(args[0])
			if err != nil {
				return err
			}
			return a.repeat(cmd, watch, func(w io.Writer) error { return k.print(cmd.Context(), a, w, args[1:]) })
		},
	})
	addWatch(c, &watch)
	return c
}

// listing formats kinds with their short names, as in "modules (mod) or chains".
func listing(all []kind) string {
	names := make([]string, len(all))
	for i, k := range all {
		names[i] = k.Plural
		if len(k.Aliases) > 0 {
			names[i] += " (" + strings.Join(k.Aliases, ", ") + ")"
		}
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// getAll prints a table of each kind. It does not support JSON or YAML: kerb export prints input for kerb apply.
func (a *app) getAll(cmd *cobra.Command, names []string, watch bool) error {
	if len(names) > 0 {
		return &usageError{fmt.Errorf("kerb get all takes no name")}
	}
	if a.output == "json" || a.output == "yaml" {
		return &usageError{fmt.Errorf("kerb get all has no answer in %s: use kerb export, or omit -o", a.output)}
	}
	return a.repeat(cmd, watch, func(w io.Writer) error {
		for i, k := range shownKinds() {
			if !k.all {
				continue
			}
			if i > 0 && a.output != "name" {
				fmt.Fprintln(w)
			}
			if a.output != "name" {
				fmt.Fprintln(w, strings.ToUpper(k.Plural))
			}
			if err := k.print(cmd.Context(), a, w, nil); err != nil {
				return err
			}
		}
		return nil
	})
}

func (a *app) completeKinds(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		out := []string{"all"}
		for _, k := range shownKinds() {
			out = append(out, k.Plural)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	k, err := findKind(args[0])
	if err != nil || len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return k.complete(a)(cmd, nil, begun)
}

func addWatch(c *cobra.Command, watch *bool) {
	c.Flags().BoolVarP(watch, "watch", "w", false, "print again whenever it changes, until interrupted")
}

var watchPeriod = time.Second // tests make it short

// repeat prints once, or with watch again whenever the output changes. On a terminal, it replaces the previous output.
func (a *app) repeat(cmd *cobra.Command, watch bool, print func(io.Writer) error) error {
	if !watch {
		return print(cmd.OutOrStdout())
	}
	w := cmd.OutOrStdout()
	tick := time.NewTicker(watchPeriod)
	defer tick.Stop()
	for last := []byte(nil); ; {
		var text bytes.Buffer
		err := print(&text)
		if cmd.Context().Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if !bytes.Equal(last, text.Bytes()) {
			if err := showUpdate(w, text.Bytes(), a.output); err != nil {
				return err
			}
			last = bytes.Clone(text.Bytes())
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}

// showUpdate prints changed text: as the next document in YAML, over the previous text on a terminal, and otherwise
// below it.
func showUpdate(w io.Writer, text []byte, output string) error {
	switch {
	case output == "yaml":
		fmt.Fprintln(w, "---")
	case output != "json" && isTerminal(w):
		fmt.Fprint(w, "\x1b[H\x1b[2J")
	}
	_, err := coloured(w).Write(text)
	return err
}

func (a *app) exportCommand() *cobra.Command {
	return answers(&cobra.Command{
		Use:   "export",
		Short: "Print all resources as YAML for apply",
		Long: "Prints every applied resource, without status and versions: as a backup, or to set up another node in " +
			"the same\n" +
			"way. Virtual services found by resolvers are omitted. -o json prints a list.",
		Example: "  kerb export > node.yaml\n  kerb export | kerb --server https://192.0.2.2:4600 apply -",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := a.export(cmd.Context())
			if err != nil {
				return err
			}
			if a.output == "json" {
				return a.print(cmd.OutOrStdout(), all, nil)
			}
			for i, r := range all {
				if i > 0 {
					fmt.Fprintln(cmd.OutOrStdout(), "---")
				}
				if _, err := cmd.OutOrStdout().Write(yamlOf(r)); err != nil {
					return err
				}
			}
			return nil
		},
	})
}

// export returns the applied resources of all kinds. Kinds that refer to others come last.
func (a *app) export(ctx context.Context) ([]any, error) {
	all := []any{}
	for _, of := range slices.Backward(resource.Kinds()) {
		k := kindOf(of)
		listed, err := k.fetchAll(ctx, a)
		if err != nil {
			return nil, err
		}
		for _, v := range listed {
			o := v.(resource.Object)
			if !of.Applied(o) {
				continue
			}
			if of.Trim(o) { // lists omit part of it
				if o, err = a.one(ctx, of, o.Meta().Name); err != nil {
					return nil, err
				}
			}
			o.ClearStatus()
			o.Meta().Generation, o.Meta().ResourceVersion = 0, ""
			all = append(all, o)
		}
	}
	return all, nil
}

// one reads a resource.
func (a *app) one(ctx context.Context, of resource.Kind, name string) (resource.Object, error) {
	o := of.New()
	return o, a.read(ctx, kindOf(of).path()+"/"+url.PathEscape(name), o)
}
