// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/models"
	"github.com/kerb-edge/kerb/internal/resource"
	"github.com/kerb-edge/kerb/sdk"
)

func describeModel(w io.Writer, m v1alpha1.Model) {
	s := resource.Status(m.Status)
	field(w, "Name", m.Metadata.Name)
	field(w, "Labels", resource.Labels(m.Metadata.Labels))
	field(w, "Generation", m.Metadata.Generation)
	printSummary(w, s.Summary)
	field(w, "Modules", strings.Join(s.Modules, ", "))
	printConditions(w, s.Conditions)
	if len(s.Versions) == 0 {
		return
	}
	fmt.Fprintln(w)
	line(w, "KEPT GENERATION", "VERSION", "REPLACED", "DIGEST")
	for _, v := range s.Versions {
		line(w, v.Generation, v.Version, v.Replaced.Local().Format(time.DateTime), v.Digest[:min(len(v.Digest), 19)])
	}
}

func printSummary(w io.Writer, s v1alpha1.ModelSummary) {
	field(w, "Model", strings.TrimSpace(s.Model+" "+s.Shape))
	field(w, "Version", s.Version)
	field(w, "Extractor", s.Extractor)
	field(w, "Features", strings.Join(s.Features, ", "))
	field(w, "Classes", strings.Join(s.Classes, ", "))
	field(w, "Document", fmt.Sprintf("%d bytes, %s", s.Size, s.Digest))
}

// loading has the options of both load and rollback.
type loading struct {
	dryRun bool
	wait   time.Duration
}

func (l *loading) addFlags(c *cobra.Command) {
	addDryRun(c, &l.dryRun)
	c.Flags().DurationVar(&l.wait, "wait", 10*time.Second, "how long to wait for the modules that use it; 0s "+
		"does not wait")
}

func (a *app) modelLoadCommand() *cobra.Command {
	var l loading
	m := v1alpha1.Model{TypeMeta: v1alpha1.TypeMeta{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindModel}}
	c := answers(&cobra.Command{
		Use:   "load FILE",
		Short: "Load a model, or replace one while packets flow",
		Long: "Loads a document of the format kerb-model/1; - is standard input. Modules whose config names the model " +
			"switch to it\n" +
			"atomically, without losing packets. If a module cannot use it, it keeps running its previous model, and load " +
			"prints the\n" +
			"reason and exits with 5. Previous versions are kept; see kerb model rollback.",
		Example: `  kerb model load dis.json
  kerb model load dis.json --name guard --label site=lab
  kerb-ml import mlp.onnx | kerb model load - --name guard`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			data, err := readFile(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			m.Spec.Document = string(data)
			if m.Metadata.Name, err = modelName(m, args[0]); err != nil {
				return err
			}
			if !cmd.Flags().Changed("label") {
				if err := a.keepLabels(cmd.Context(), &m.Metadata); err != nil {
					return err
				}
			}
			return a.loadModel(cmd, m, l)
		},
	})
	c.Flags().StringVar(&m.Metadata.Name, "name", "", "name of the resource; the one in the document by default")
	c.Flags().StringToStringVarP(&m.Metadata.Labels, "label", "l", nil, "label as key=value; replaces all existing "+
		"labels; may be repeated")
	l.addFlags(c)
	return c
}

// modelName checks the document, and returns the name of its resource.
func modelName(m v1alpha1.Model, file string) (string, error) {
	summary, err := models.Summarize(m.Spec)
	if err != nil {
		return "", &apierrors.Invalid{Resource: file, Reason: err.Error()}
	}
	if m.Metadata.Name != "" {
		return m.Metadata.Name, nil
	}
	return summary.Name, nil
}

// keepLabels copies the labels of the model that is replaced.
func (a *app) keepLabels(ctx context.Context, meta *v1alpha1.ObjectMeta) error {
	all, err := fetch[[]v1alpha1.Model](ctx, a, "/v1/models")
	for _, m := range all {
		if m.Metadata.Name == meta.Name {
			meta.Labels = m.Metadata.Labels
		}
	}
	return err
}

// loadModel applies a model and waits until the modules that use it run it.
func (a *app) loadModel(cmd *cobra.Command, m v1alpha1.Model, l loading) error {
	err := a.changeAndPrint(cmd, http.MethodPut, modelPath(m.Metadata.Name), l.dryRun, m)
	if err != nil || l.dryRun || l.wait == 0 {
		return err
	}
	return a.awaitModel(cmd.Context(), m.Metadata.Name, l.wait)
}

func modelPath(name string) string { return "/v1/models/" + url.PathEscape(name) }

// awaitModel waits until every module has been notified of the model.
func (a *app) awaitModel(ctx context.Context, name string, limit time.Duration) error {
	const every = 50 * time.Millisecond
	for end := time.Now().Add(limit); ; {
		all, err := fetch[[]v1alpha1.Model](ctx, a, "/v1/models") // without the document
		if err != nil {
			return err
		}
		i := slices.IndexFunc(all, func(m v1alpha1.Model) bool { return m.Metadata.Name == name })
		if i < 0 {
			return &apierrors.Conflict{Reason: "model " + name + " was deleted in the meantime"}
		}
		switch ready := readyCondition(resource.Status(all[i].Status).Conditions); {
		case ready.Status != "False":
			return nil
		case ready.Reason == models.ReasonRefused:
			return &apierrors.Conflict{Reason: fmt.Sprintf("model %s is stored but not in use, the previous version keeps "+
				"running: %s", name, ready.Message)}
		case time.Now().After(end):
			return fmt.Errorf("model %s is stored but not in use yet: %s", name, ready.Message)
		}
		if !sdk.Pause(ctx, every) {
			return ctx.Err()
		}
	}
}

func readyCondition(all []v1alpha1.Condition) (ready v1alpha1.Condition) {
	if i := slices.IndexFunc(all, func(c v1alpha1.Condition) bool { return c.Type == "Ready" }); i >= 0 {
		ready = all[i]
	}
	return ready
}

func (a *app) modelDescribeCommand() *cobra.Command {
	return answers(&cobra.Command{
		Use:   "describe NAME|FILE",
		Short: "Show a model's contents and cost, and how close it is to the limits",
		Long: "Describes a model of the node, or a document in a file (a path with a dot or a slash; - is standard input), " +
			"for which no\n" +
			"agent is needed.",
		Example:           "  kerb model describe guard\n  kerb model describe dis.json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeWithFiles(kindOf(resource.Model).complete(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			var spec v1alpha1.ModelSpec
			if strings.ContainsAny(args[0], "./") || args[0] == "-" {
				data, err := readFile(args[0], cmd.InOrStdin())
				if err != nil {
					return err
				}
				spec.Document = string(data)
			} else {
				m, err := fetch[v1alpha1.Model](cmd.Context(), a, modelPath(args[0]))
				if err != nil {
					return err
				}
				spec = m.Spec
			}
			d, err := models.Describe(spec)
			if err != nil {
				return &apierrors.Invalid{Resource: args[0], Reason: err.Error()}
			}
			return a.print(cmd.OutOrStdout(), d, func(w io.Writer) { printDescription(w, d) })
		},
	})
}

// completeWithFiles completes files as well as names.
func completeWithFiles(names cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, _ := names(cmd, args, text)
		return all, cobra.ShellCompDirectiveDefault
	}
}

func (a *app) modelRollbackCommand() *cobra.Command {
	var l loading
	var to int64
	c := answers(&cobra.Command{
		Use:   "rollback NAME",
		Short: "Go back to an earlier version of a model",
		Long: "Replaces the current version with an earlier one; the current one is kept as an earlier version.\n" +
			"The last " + strconv.Itoa(resource.VersionsKept) + " are kept; kerb model get NAME lists them.",
		Example:           "  kerb model rollback guard\n  kerb model rollback guard --to 3",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: kindOf(resource.Model).complete(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			now, err := fetch[v1alpha1.Model](cmd.Context(), a, modelPath(args[0]))
			if err != nil {
				return err
			}
			kept := resource.Status(now.Status).Versions
			if to == 0 && len(kept) == 0 {
				return &apierrors.Conflict{Reason: "no earlier version of model " + args[0] + " is kept"}
			}
			if to == 0 {
				to = kept[0].Generation
			}
			old, err := fetch[v1alpha1.Model](cmd.Context(), a, modelPath(args[0])+"/versions/"+strconv.FormatInt(to, 10))
			if err != nil {
				return err
			}
			now.Spec, now.Metadata.Generation, now.Status = old.Spec, 0, nil
			return a.loadModel(cmd, now, l)
		},
	})
	c.Flags().Int64Var(&to, "to", 0, "generation to go back to; the one before by default")
	_ = c.RegisterFlagCompletionFunc("to", a.completeGenerations)
	l.addFlags(c)
	return c
}

// completeGenerations completes stored generations.
func (a *app) completeGenerations(cmd *cobra.Command, args []string,
	_ string) (out []string, _ cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	m, err := fetch[v1alpha1.Model](cmd.Context(), a, modelPath(args[0]))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	for _, v := range resource.Status(m.Status).Versions {
		out = append(out, fmt.Sprintf("%d\tversion %d", v.Generation, v.Version))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// printDescription prints sizes with their limits, which shows why a model is too large.
func printDescription(w io.Writer, d models.Description) {
	field(w, "Name", d.Name)
	field(w, "Description", d.Text)
	printSummary(w, d.ModelSummary)
	field(w, "Arithmetic", d.Arithmetic)
	field(w, "Window", d.Window)
	if d.Threshold != nil {
		field(w, "Threshold", *d.Threshold)
	}
	field(w, "Trained on", d.TrainedOn)
	if d.Accuracy != nil {
		field(w, "Accuracy", *d.Accuracy)
	}
	for _, r := range d.Rules {
		field(w, "Baseline", fmt.Sprintf("accuracy %v of the rule %s", r.Accuracy, r.Rule))
	}
	field(w, "Too large for the data plane", d.TooLarge)
	fmt.Fprintln(w)
	line(w, "SIZE", "USED", "LIMIT")
	for _, u := range d.Usage {
		limit := any("")
		if u.Limit > 0 {
			limit = u.Limit
		}
		line(w, strings.ToUpper(u.What[:1])+u.What[1:], u.Used, limit)
	}
}
