// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/internal/yamldoc"
)

func (a *app) applyCommand() *cobra.Command {
	var files []string
	var dryRun, ifUnchanged bool
	var by writer
	c := answers(&cobra.Command{
		Use:   "apply FILE|DIR|-...",
		Short: "Create or update resources: all of them or none",
		Long: "Creates or updates the resources in the files, all or nothing: after any error the node is unchanged.\n" +
			"Unchanged resources are left alone. Resources that are in no file are kept, unless --prune deletes them; see\n" +
			"also kerb delete.\n\n" +
			"Each resource has an owner: the user, or a program that manages its own resources, such as oakestra. Resources\n" +
			"of other owners are neither changed nor deleted, unless --force takes them over.\n\n" +
			"With --if-unchanged nothing is applied if a resource has changed since the file was read from the agent: its\n" +
			"metadata.resourceVersion must be the current one. A resource without one must not exist.",
		Example: `  kerb apply firewall.yaml
  kerb apply -f node.d --dry-run
  kerb apply -f node.d --prune --owner fleet
  kerb apply --if-unchanged firewall.yaml
  kerb module get fw -o yaml | sed s/deny/allow/ | kerb apply -f -`,
		Args: filesGiven(&files),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := readInput(slices.Concat(files, args), cmd.InOrStdin())
			if err != nil {
				return err
			}
			query := by.query()
			if ifUnchanged {
				query.Set("ifUnchanged", "true")
			}
			path := "/v1/apply?" + query.Encode()
			result, err := a.change(cmd.Context(), http.MethodPost, path, dryRun, in.resources)
			if err != nil {
				return in.locate(err)
			}
			return a.printResult(cmd, result)
		},
	})
	addFiles(c, &files)
	addDryRun(c, &dryRun)
	by.addFlags(c)
	by.addPrune(c)
	c.Flags().BoolVar(&ifUnchanged, "if-unchanged", false, "only if no resource has been changed since it was read")
	return c
}

func (a *app) diffCommand() *cobra.Command {
	var files []string
	var exit bool
	var by writer
	c := answers(&cobra.Command{
		Use:     "diff FILE|DIR|-...",
		Short:   "Show what apply would change",
		Example: "  kerb diff -f node.d\n  kerb diff -f firewall.yaml --exit-code",
		Args:    filesGiven(&files),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := readInput(slices.Concat(files, args), cmd.InOrStdin())
			if err != nil {
				return err
			}
			result, err := a.change(cmd.Context(), http.MethodPost, "/v1/apply?"+by.query().Encode(), true, in.resources)
			if err != nil {
				return in.locate(err)
			}
			if err := a.print(cmd.OutOrStdout(), result, func(io.Writer) {
				printDiff(cmd.OutOrStdout(), result.Changes, "live", "applied")
			}); err != nil {
				return err
			}
			if exit && slices.ContainsFunc(result.Changes, changes) {
				return errors.New("there are differences")
			}
			return nil
		},
	})
	addFiles(c, &files)
	by.addFlags(c)
	by.addPrune(c)
	c.Flags().BoolVar(&exit, "exit-code", false, "exit with 1 if there are differences")
	return c
}

func changes(c v1alpha1.Change) bool { return c.Action != "unchanged" }

// printDiff prints the differences; was and is label the two sides.
func printDiff(w io.Writer, changes []v1alpha1.Change, was, is string) {
	for _, c := range changes {
		name := strings.ToLower(c.Kind) + "/" + c.Name
		_, _ = coloured(w).Write(diff.Diff(name+" ("+was+")", yamlOf(c.Before), name+" ("+is+")", yamlOf(c.After)))
	}
}

func yamlOf(v any) []byte {
	if v == nil {
		return nil
	}
	data, err := yamldoc.Encode(v)
	if err != nil {
		return []byte(err.Error())
	}
	return data
}

func (a *app) deleteCommand() *cobra.Command {
	var files []string
	var dryRun, ignore bool
	var by writer
	c := answers(&cobra.Command{
		Use:     "delete FILE|DIR|-...",
		Short:   "Delete the resources that the files name: all of them or none",
		Example: "  kerb delete -f firewall.yaml\n  kerb delete -f node.d --ignore-missing",
		Args:    filesGiven(&files),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := readInput(slices.Concat(files, args), cmd.InOrStdin())
			if err == nil && ignore {
				err = a.dropMissing(cmd.Context(), &in)
			}
			if err != nil {
				return err
			}
			if len(in.refs) == 0 {
				return a.printResult(cmd, v1alpha1.ApplyResult{DryRun: dryRun, Changes: []v1alpha1.Change{}})
			}
			return a.changeAndPrint(cmd, http.MethodPost, "/v1/delete?"+by.query().Encode(), dryRun, in.refs)
		},
	})
	addFiles(c, &files)
	addDryRun(c, &dryRun)
	by.addFlags(c)
	c.Flags().BoolVar(&ignore, "ignore-missing", false, "ignore resources that do not exist")
	return c
}

// dropMissing removes references to resources that do not exist from in.
func (a *app) dropMissing(ctx context.Context, in *input) error {
	exists := map[resource.Ref]bool{}
	for _, of := range resource.Kinds() {
		if !slices.ContainsFunc(in.refs, func(r resource.Ref) bool { return r.Kind == of.Names().Kind }) {
			continue
		}
		all, err := kindOf(of).fetchAll(ctx, a)
		if err != nil {
			return err
		}
		for _, v := range all {
			exists[resource.RefOf(v.(resource.Object))] = true
		}
	}
	in.refs = slices.DeleteFunc(in.refs, func(r resource.Ref) bool { return !exists[r] })
	return nil
}

func addFiles(c *cobra.Command, files *[]string) {
	c.Flags().StringArrayVarP(files, "filename", "f", nil, "file, directory or - for standard input; may be repeated; "+
		"arguments without the flag are files too")
}

// filesGiven requires at least one file, as an argument or with -f.
func filesGiven(files *[]string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(*files)+len(args) == 0 {
			return fmt.Errorf("%s needs a file, a directory, or - for standard input", cmd.CommandPath())
		}
		return nil
	}
}

// printResult prints every change on its own line, and with -v the steps.
func (a *app) printResult(cmd *cobra.Command, result v1alpha1.ApplyResult) error {
	notes := visible{cmd.ErrOrStderr()} // warnings quote text of packages and control planes
	if a.verbose {
		for _, step := range result.Steps {
			fmt.Fprintln(notes, step)
		}
	}
	for _, text := range result.Warnings {
		fmt.Fprintln(notes, "warning:", text)
	}
	return a.print(cmd.OutOrStdout(), result, func(w io.Writer) {
		for _, c := range result.Changes {
			fmt.Fprintf(w, "%s/%s %s%s\n", strings.ToLower(c.Kind), c.Name, past[c.Action], dryMark(result.DryRun))
		}
	})
}

var past = map[string]string{"create": "created", "update": "updated", "delete": "deleted", "unchanged": "unchanged"}

func dryMark(dryRun bool) string {
	if dryRun {
		return " (dry run)"
	}
	return ""
}

// input has the content of the files. Resources are sent as written, so that the agent can distinguish absent fields.
type input struct {
	resources []any
	refs      []resource.Ref
	places    map[string]place // by "Kind name"
	files     []string
}

// place is the location of a resource.
type place struct {
	file     string
	index    yamldoc.Index
	resource int
}

// readInput reads and checks all files, and returns all errors in them with their locations.
func readInput(files []string, stdin io.Reader) (input, error) {
	in := input{places: map[string]place{}}
	paths, err := expand(files)
	if err != nil {
		return in, err
	}
	var wrong []error
	for _, path := range paths {
		data, err := readFile(path, stdin)
		if err != nil {
			return in, err
		}
		wrong = append(wrong, in.add(fileName(path), data))
	}
	if err := errors.Join(wrong...); err != nil {
		return in, err
	}
	if len(in.resources) == 0 {
		return in, &apierrors.Invalid{Resource: fileName(strings.Join(files, ", ")), Reason: "contains no resource"}
	}
	return in, nil
}

// add adds the resources of a file, or returns the errors in them.
func (in *input) add(file string, data []byte) error {
	in.files = append(in.files, file)
	resources, err := resource.Documents(data)
	if err != nil {
		return located(err, func(*apierrors.Invalid) place { return place{file: file} })
	}
	index := yamldoc.Parse(data)
	labels := resource.DisplayNames(resources)
	objects, err := resource.Decode(data)
	if err != nil {
		return located(err, func(e *apierrors.Invalid) place { return place{file, index, slices.Index(labels, e.Resource)} })
	}
	for i, label := range labels {
		if _, twice := in.places[label]; !twice {
			in.places[label] = place{file, index, i}
		}
	}
	in.resources = append(in.resources, resources...)
	in.refs = append(in.refs, resource.Refs(objects)...)
	return nil
}

// locate adds the location in the files to an error of the agent.
func (in *input) locate(err error) error {
	if len(apierrors.Invalids(err)) > 0 {
		return located(err, func(e *apierrors.Invalid) place { return in.places[e.Resource] })
	}
	for label, at := range in.places {
		if err != nil && mentions(err.Error(), label) {
			line, column := at.index.At(at.resource, "")
			return fmt.Errorf("%s: %w", apierrors.FormatPosition(at.file, line, column), err)
		}
	}
	return err
}

// mentions reports whether text contains the label of a resource, as "module fw" or "Module fw".
func mentions(text, label string) bool {
	found, _ := regexp.MatchString(`(?i)\b`+regexp.QuoteMeta(label)+`($|[^A-Za-z0-9-])`, text)
	return found
}

// located returns err with the location of each error, sorted by location.
func located(err error, find func(*apierrors.Invalid) place) error {
	all := apierrors.Invalids(err)
	for i, e := range all {
		if at := find(e); at.file != "" {
			all[i] = at.index.Position(at.file, at.resource, e)
		}
	}
	yamldoc.SortByPosition(all)
	return apierrors.Join(all)
}

// expand replaces directories by the YAML and JSON files in them.
func expand(files []string) ([]string, error) {
	var all []string
	for _, path := range files {
		if info, err := os.Stat(path); path == "-" || err != nil || !info.IsDir() {
			all = append(all, path)
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			if slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(entry.Name())) && !entry.IsDir() {
				all = append(all, filepath.Join(path, entry.Name()))
			}
		}
	}
	return all, nil
}

// fileName returns the name of a file for messages.
func fileName(path string) string {
	if path == "-" {
		return "standard input"
	}
	return path
}

func readFile(path string, stdin io.Reader) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(path)
}
