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
	"slices"
	"strings"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/fault"
	"github.com/kerb-edge/kerb/internal/server"
	"github.com/rogpeppe/go-internal/diff"
	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

func (a *app) applyCommand() *cobra.Command {
	var files []string
	var dryRun bool
	c := answers(&cobra.Command{
		Use:   "apply -f FILE|DIR|-",
		Short: "Create or update resources: all of them or none",
		Long: "Makes the resources in the files what they say there. All of it happens or none: on any error the node is as before.\n" +
			"What is applied already is left untouched. Resources that are in no file stay; see kerb delete.",
		Example: `  kerb apply -f firewall.yaml
  kerb apply -f node.d --dry-run
  kerb module get fw -o yaml | sed s/deny/allow/ | kerb apply -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := readInput(files, cmd.InOrStdin())
			if err != nil {
				return err
			}
			result, err := a.change(cmd.Context(), http.MethodPost, "/v1/apply", dryRun, in.resources)
			if err != nil {
				return err
			}
			return a.printResult(cmd, result)
		},
	})
	addFiles(c, &files)
	addDryRun(c, &dryRun)
	return c
}

func (a *app) diffCommand() *cobra.Command {
	var files []string
	var exit bool
	c := answers(&cobra.Command{
		Use:     "diff -f FILE|DIR|-",
		Short:   "Show what apply would change",
		Example: "  kerb diff -f node.d\n  kerb diff -f firewall.yaml --exit-code",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := readInput(files, cmd.InOrStdin())
			if err != nil {
				return err
			}
			result, err := a.change(cmd.Context(), http.MethodPost, "/v1/apply", true, in.resources)
			if err != nil {
				return err
			}
			if err := a.print(cmd.OutOrStdout(), result, func(io.Writer) { printDiff(cmd.OutOrStdout(), result) }); err != nil {
				return err
			}
			if exit && slices.ContainsFunc(result.Changes, changes) {
				return errors.New("there are differences")
			}
			return nil
		},
	})
	addFiles(c, &files)
	c.Flags().BoolVar(&exit, "exit-code", false, "exit with 1 if there are differences")
	return c
}

func changes(c v1alpha1.Change) bool { return c.Action != "unchanged" }

func printDiff(w io.Writer, result v1alpha1.ApplyResult) {
	for _, c := range result.Changes {
		name := strings.ToLower(c.Kind) + "/" + c.Name
		_, _ = w.Write(diff.Diff(name+" now", yamlOf(c.Before), name+" then", yamlOf(c.After)))
	}
}

func yamlOf(v any) []byte {
	if v == nil {
		return nil
	}
	data, err := yaml.Marshal(v)
	if err != nil {
		return []byte(err.Error())
	}
	return data
}

func (a *app) deleteCommand() *cobra.Command {
	var files []string
	var dryRun, ignore bool
	c := answers(&cobra.Command{
		Use:     "delete -f FILE|DIR|-",
		Short:   "Delete the resources that the files name: all of them or none",
		Example: "  kerb delete -f firewall.yaml\n  kerb delete -f node.d --ignore-missing",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := readInput(files, cmd.InOrStdin())
			if err == nil && ignore {
				err = a.dropMissing(cmd.Context(), &in)
			}
			if err != nil {
				return err
			}
			if len(in.refs) == 0 {
				return a.printResult(cmd, v1alpha1.ApplyResult{DryRun: dryRun, Changes: []v1alpha1.Change{}})
			}
			result, err := a.change(cmd.Context(), http.MethodPost, "/v1/delete", dryRun, in.refs)
			if err != nil {
				return err
			}
			return a.printResult(cmd, result)
		},
	})
	addFiles(c, &files)
	addDryRun(c, &dryRun)
	c.Flags().BoolVar(&ignore, "ignore-missing", false, "leave out what does not exist")
	return c
}

// dropMissing takes references out of in that the agent does not know.
func (a *app) dropMissing(ctx context.Context, in *input) error {
	exists := map[server.Ref]bool{}
	modules, err := fetch[[]v1alpha1.Module](ctx, a, "/v1/modules")
	if err != nil {
		return err
	}
	services, err := fetch[[]v1alpha1.Service](ctx, a, "/v1/services")
	if err != nil {
		return err
	}
	virtual, err := fetch[[]v1alpha1.VirtualService](ctx, a, "/v1/virtualservices")
	if err != nil {
		return err
	}
	models, err := fetch[[]v1alpha1.Model](ctx, a, "/v1/models")
	for _, ref := range (server.Request{Modules: modules, Services: services, VirtualServices: virtual, Models: models}).Refs() {
		exists[ref] = true
	}
	in.refs = slices.DeleteFunc(in.refs, func(r server.Ref) bool { return !exists[r] })
	return err
}

func addFiles(c *cobra.Command, files *[]string) {
	c.Flags().StringArrayVarP(files, "filename", "f", nil, "file, directory or - for standard input; may be given several times")
	_ = c.MarkFlagRequired("filename")
}

// printResult tells every change on its own line, and with -v the steps.
func (a *app) printResult(cmd *cobra.Command, result v1alpha1.ApplyResult) error {
	if a.verbose {
		for _, step := range result.Steps {
			fmt.Fprintln(cmd.ErrOrStderr(), step)
		}
	}
	for _, text := range result.Warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", text)
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

// input is what the files hold. Resources are sent as they were written, so that the agent sees what was left out.
type input struct {
	resources []any
	refs      []server.Ref
}

// readInput reads and checks all files, so that a mistake is told with the name of the file.
func readInput(files []string, stdin io.Reader) (input, error) {
	var in input
	paths, err := expand(files)
	if err != nil {
		return in, err
	}
	for _, path := range paths {
		data, err := readFile(path, stdin)
		if err != nil {
			return in, err
		}
		request, err := server.Decode(data)
		if err != nil {
			return in, fmt.Errorf("%s: %w", fileName(path), err)
		}
		resources, err := server.Documents(data)
		if err != nil {
			return in, fmt.Errorf("%s: %w", fileName(path), err)
		}
		in.resources = append(in.resources, resources...)
		in.refs = append(in.refs, request.Refs()...)
	}
	if len(in.resources) == 0 {
		return in, &fault.Invalid{Resource: fileName(strings.Join(files, ", ")), Reason: "there is no resource in it"}
	}
	return in, nil
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

// fileName is what messages call a file.
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
