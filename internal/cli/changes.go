// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/resource"
)

func (a *app) changesCommand() *cobra.Command {
	var limit int
	var of string
	c := answers(&cobra.Command{
		Use:   "changes [NUMBER]",
		Short: "Show changes of the node with client and time, or one change with its differences",
		Long: "Shows the newest changes of resources, and those that were refused. With a number it shows that change: " +
			"its\ndifferences, and the steps in the kernel. kerb revert reverts a change.",
		Example: "  kerb changes\n  kerb changes --of module/fw --limit 5\n  kerb changes 41",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return a.showChange(cmd, args[0])
			}
			q := url.Values{"limit": {strconv.Itoa(limit)}}
			if err := selectResource(q, of); err != nil {
				return err
			}
			return show(cmd, a, "/v1/changes?"+q.Encode(), printChanges)
		},
	})
	c.Flags().IntVar(&limit, "limit", 20, "at most this many")
	c.Flags().StringVar(&of, "of", "", "only changes of this kind, or of this resource: module, module/fw")
	return c
}

// selectResource adds the parameters for a flag such as module/fw.
func selectResource(q url.Values, of string) error {
	if of == "" {
		return nil
	}
	kind, name, _ := strings.Cut(of, "/")
	k, err := findKind(kind)
	if err == nil {
		_, err = resource.Find(k.Kind)
	}
	if err != nil {
		return &usageError{fmt.Errorf("--of: %w", err)}
	}
	q.Set("kind", k.Kind)
	q.Set("name", name)
	return nil
}

func printChanges(w io.Writer, all []v1alpha1.ChangeRecord) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no changes are recorded")
		return
	}
	line(w, "NUMBER", "TIME", "TOOK", "BY", "OUTCOME", "CHANGES")
	for _, r := range all {
		line(w, r.Number, localTime(r.Time), tookOf(r), byOf(r), outcomeOf(r), summaryOf(r.Changes))
	}
}

func localTime(t time.Time) string { return t.Local().Format(time.DateTime) }

func tookOf(r v1alpha1.ChangeRecord) string {
	return time.Duration(r.Took).Round(100 * time.Microsecond).String()
}

// byOf returns the client, and the owner of the resources unless that is the user.
func byOf(r v1alpha1.ChangeRecord) string {
	if r.Owner == v1alpha1.OwnerUser {
		return r.By
	}
	return r.Owner + " (" + r.By + ")"
}

func outcomeOf(r v1alpha1.ChangeRecord) string {
	switch {
	case r.Repeated > 0:
		return fmt.Sprintf("%s %d times", r.Outcome, r.Repeated+1)
	case r.Reverts > 0:
		return fmt.Sprintf("reverts %d", r.Reverts)
	}
	return r.Outcome
}

// summaryOf lists up to three changes.
func summaryOf(changes []v1alpha1.Change) string {
	const most = 3
	var texts []string
	for i, c := range changes {
		if i == most {
			texts = append(texts, fmt.Sprintf("and %d more", len(changes)-most))
			break
		}
		texts = append(texts, c.Action+" "+strings.ToLower(c.Kind)+"/"+c.Name)
	}
	return strings.Join(texts, ", ")
}

func (a *app) showChange(cmd *cobra.Command, number string) error {
	n, err := changeNumber(number)
	if err != nil {
		return err
	}
	return show(cmd, a, changePath(n), describeChange)
}

// describeChange prints the differences last, since they may be long.
func describeChange(w io.Writer, r v1alpha1.ChangeRecord) {
	field(w, "Number", r.Number)
	field(w, "Time", localTime(r.Time))
	field(w, "Took", tookOf(r))
	field(w, "By", byOf(r))
	field(w, "Outcome", outcomeOf(r))
	field(w, "Error", r.Error)
	for i, step := range r.Steps {
		field(w, fmt.Sprintf("Step %d", i+1), step)
	}
	fmt.Fprintln(w)
	printDiff(w, r.Changes, "before", "after")
}

func changeNumber(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, &usageError{fmt.Errorf("%q is not the number of a change; kerb changes lists them", text)}
	}
	return n, nil
}

func changePath(n int64) string { return fmt.Sprintf("/v1/changes/%d", n) }

func (a *app) revertCommand() *cobra.Command {
	var dryRun, force bool
	c := answers(&cobra.Command{
		Use:   "revert NUMBER",
		Short: "Revert a change: all of it or nothing",
		Long: "Restores the resources of a change to the state before it: deletes resources that it created, and applies\n" +
			"the previous state of resources that it updated or deleted. Refused if one of them has changed since, unless\n" +
			"--force is given. With --dry-run it shows the differences. A revert is itself a change, which can be reverted.",
		Example: "  kerb revert 41 --dry-run\n  kerb revert 41",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := changeNumber(args[0])
			if err != nil {
				return err
			}
			path := changePath(n) + "/revert"
			if force {
				path += "?force=true"
			}
			result, err := a.change(cmd.Context(), http.MethodPost, path, dryRun, nil)
			if err != nil {
				return err
			}
			if dryRun && a.output == "table" {
				printDiff(cmd.OutOrStdout(), result.Changes, "now", "reverted")
			}
			return a.printResult(cmd, result)
		},
	})
	addDryRun(c, &dryRun)
	c.Flags().BoolVar(&force, "force", false, "also resources changed since, and changes of other owners")
	return c
}
