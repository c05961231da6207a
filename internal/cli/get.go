// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/nearest"
)

// shown is a kind of things that `kerb get` prints.
type shown struct {
	names []string // the first is that of the list
	print func(ctx context.Context, a *app, w io.Writer, names []string) error
	all   bool // part of `kerb get all`
	ids   func(*app) cobra.CompletionFunc
}

func showOf[T any](k kind[T], all bool, names ...string) shown {
	return shown{append(names, k.noun), k.print, all, k.complete}
}

// shownKinds are all kinds that `kerb get` knows, in the order of `kerb get all`.
func shownKinds() []shown {
	return []shown{
		showOf(moduleKind(), true, "modules", "mod"), showOf(serviceKind(), true, "services", "svc"),
		showOf(virtualServiceKind(), true, "virtualservices", "vs"), showOf(modelKind(), true, "models"),
		showOf(chainKind(), true, "chains"), showOf(packageKind(), false, "packages"),
	}
}

func findKind(name string) (shown, error) {
	var known []string
	for _, k := range shownKinds() {
		if slices.Contains(k.names, strings.ToLower(name)) {
			return k, nil
		}
		known = append(known, k.names...)
	}
	return shown{}, &usageError{fmt.Errorf("no kind %q; kinds are modules, services, virtualservices, models, chains, packages and all%s", name, nearest.Hint(name, known))}
}

func (a *app) getCommand() *cobra.Command {
	var watch bool
	c := names(&cobra.Command{
		Use:   "get KIND [NAME]",
		Short: "Show resources of a kind, one of them, or all of the node",
		Long:  "Shows modules, services, virtualservices (vs), models, chains or packages; or all but packages.",
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
				fmt.Fprintln(w, strings.ToUpper(k.names[0]))
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
			out = append(out, k.names[0])
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
	k, err := findKind(args[0])
	if err != nil || len(args) > 1 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return k.ids(a)(cmd, nil, begun)
}

func addWatch(c *cobra.Command, watch *bool) {
	c.Flags().BoolVarP(watch, "watch", "w", false, "print again whenever it changes, until interrupted")
}

var watchPeriod = time.Second // tests make it short

// repeat prints once, or again whenever what is printed changes. On a terminal the new text takes the place of the old one.
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
			if err := showAgain(w, text.Bytes(), a.output); err != nil {
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

func showAgain(w io.Writer, text []byte, output string) error {
	switch {
	case output == "yaml":
		fmt.Fprintln(w, "---")
	case output != "json" && isTerminal(w):
		fmt.Fprint(w, "\x1b[H\x1b[2J")
	}
	_, err := coloured(w).Write(text)
	return err
}

// bare takes off what the agent has added to the metadata of a resource.
func bare(meta *v1alpha1.ObjectMeta) { meta.Generation, meta.ResourceVersion = 0, "" }

func (a *app) exportCommand() *cobra.Command {
	return answers(&cobra.Command{
		Use:   "export",
		Short: "Print all resources as YAML that apply takes back",
		Long: "Prints every Service, Model, VirtualService and Module that was applied, without status and versions: a backup, and the\n" +
			"same node elsewhere. Virtual services that resolvers found are left out. -o json prints a list.",
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

func (a *app) export(ctx context.Context) ([]any, error) {
	all := []any{}
	services, err := fetch[[]v1alpha1.Service](ctx, a, "/v1/services")
	if err != nil {
		return nil, err
	}
	for _, s := range services {
		s.Status = nil
		bare(&s.Metadata)
		all = append(all, s)
	}
	models, err := fetch[[]v1alpha1.Model](ctx, a, "/v1/models")
	if err != nil {
		return nil, err
	}
	for _, m := range models { // a list is without their documents
		m, err := fetch[v1alpha1.Model](ctx, a, modelPath(m.Metadata.Name))
		if err != nil {
			return nil, err
		}
		m.Status = nil
		bare(&m.Metadata)
		all = append(all, m)
	}
	return a.exportModules(ctx, all)
}

func (a *app) exportModules(ctx context.Context, all []any) ([]any, error) {
	virtual, err := fetch[[]v1alpha1.VirtualService](ctx, a, "/v1/virtualservices")
	if err != nil {
		return nil, err
	}
	for _, s := range virtual {
		if virtualStatus(s).Source == v1alpha1.SourceStatic {
			s.Status = nil
			bare(&s.Metadata)
			all = append(all, s)
		}
	}
	modules, err := fetch[[]v1alpha1.Module](ctx, a, "/v1/modules")
	for _, m := range modules {
		m.Status = nil
		bare(&m.Metadata)
		all = append(all, m)
	}
	return all, err
}
