// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/server"
)

func describeSet(w io.Writer, s v1alpha1.Set) {
	status := resource.Status(s.Status)
	field(w, "Name", s.Metadata.Name)
	field(w, "Labels", resource.Labels(s.Metadata.Labels))
	field(w, "Type", s.Spec.Type)
	field(w, "Elements", status.Elements)
	field(w, "Modules", strings.Join(status.Modules, ", "))
	printConditions(w, status.Conditions)
	if len(s.Spec.Elements) > 0 {
		fmt.Fprintf(w, "\n%s\n", strings.Join(s.Spec.Elements, "\n"))
	}
}

func setPath(name string) string { return "/v1/sets/" + url.PathEscape(name) }

func (a *app) setCommands() []*cobra.Command {
	return []*cobra.Command{
		a.setChangeCommand("add", "Add elements to a set", func(c *v1alpha1.SetChange, all []string) { c.Add = all }),
		a.setChangeCommand("remove", "Delete elements of a set",
			func(c *v1alpha1.SetChange, all []string) { c.Delete = all }),
		a.setLoadCommand(),
	}
}

// setChangeCommand returns a command that changes elements.
func (a *app) setChangeCommand(verb, short string, of func(*v1alpha1.SetChange, []string)) *cobra.Command {
	var file string
	c := answers(&cobra.Command{
		Use:   verb + " NAME ELEMENT...",
		Short: short,
		Long: short + ", while packets flow. The change is in effect, and on disk, when the command returns. Connections " +
			"through\nfirewalls with sets are checked again with their next packet.",
		Example: "  kerb set " + verb + " blocklist 198.51.100.7 2001:db8::7\n  kerb set " + verb +
			" blocklist --file addresses.txt",
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: kindOf(resource.Set).complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			elements := args[1:]
			if file != "" {
				more, err := readElements(file, cmd.InOrStdin())
				if err != nil {
					return err
				}
				elements = append(elements, more...)
			}
			if len(elements) == 0 {
				return &usageError{fmt.Errorf("name elements, or a --file with them")}
			}
			var change v1alpha1.SetChange
			of(&change, elements)
			return a.changeSet(cmd, args[0], change)
		},
	})
	c.Flags().StringVarP(&file, "file", "f", "", "file with an element on each line; - is standard input")
	return c
}

func (a *app) changeSet(cmd *cobra.Command, name string, change v1alpha1.SetChange) error {
	var changed v1alpha1.SetChanged
	if err := a.send(cmd.Context(), http.MethodPatch, setPath(name)+"/elements", change, &changed); err != nil {
		return err
	}
	return a.print(cmd.OutOrStdout(), changed, func(w io.Writer) {
		fmt.Fprintf(w, "set %s: %d added, %d deleted, %d elements now\n", name, changed.Added, changed.Deleted,
			changed.Elements)
	})
}

func (a *app) setLoadCommand() *cobra.Command {
	s := v1alpha1.Set{TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindSet}}
	var dryRun bool
	c := answers(&cobra.Command{
		Use:   "load NAME FILE --type TYPE",
		Short: "Create a set, or replace all its elements at once",
		Long: "Reads a file with an element on each line; - is standard input, and # begins a comment. Each packet sees " +
			"either the\nold elements or the new ones.",
		Example: "  kerb set load blocklist drop.txt --type prefixes\n" +
			"  kerb set load web ports.txt --type ports",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: kindOf(resource.Set).complete(a),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			s.Metadata.Name = args[0]
			if s.Spec.Elements, err = readElements(args[1], cmd.InOrStdin()); err != nil {
				return err
			}
			if err := a.keepOfSet(cmd, &s); err != nil {
				return err
			}
			return a.changeAndPrint(cmd, http.MethodPut, setPath(args[0]), dryRun, s)
		},
	})
	c.Flags().StringVar(&s.Spec.Type, "type", "addresses", "addresses, prefixes or ports; of a set that "+
		"exists, by default its own")
	c.Flags().StringToStringVarP(&s.Metadata.Labels, "label", "l", nil, "label as key=value; may be repeated; of a set "+
		"that exists, by default its own")
	addDryRun(c, &dryRun)
	return c
}

// keepOfSet keeps type and labels of an existing set, unless set by flags.
func (a *app) keepOfSet(cmd *cobra.Command, s *v1alpha1.Set) error {
	now, err := fetch[v1alpha1.Set](cmd.Context(), a, setPath(s.Metadata.Name))
	if p, ok := errors.AsType[*server.Problem](err); ok && p.Status == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if !cmd.Flags().Changed("type") {
		s.Spec.Type = now.Spec.Type
	}
	if !cmd.Flags().Changed("label") {
		s.Metadata.Labels = now.Metadata.Labels
	}
	return nil
}

// readElements reads one element per line.
func readElements(file string, stdin io.Reader) (out []string, err error) {
	data, err := readFile(file, stdin)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(strings.NewReader(string(data)))
	for lines.Scan() {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text != "" {
			out = append(out, text)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return out, nil
}
