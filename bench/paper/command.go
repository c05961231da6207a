// SPDX-License-Identifier: Apache-2.0

package paper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/bench"
)

func init() { bench.RegisterCommand(command) }

// cpuExperiment is the experiment that divides the CPUs between client and servers.
const cpuExperiment = "responder"

// flags are the values of the flags.
type flags struct {
	short, quick, bystander                bool
	tables                                 []string
	resume, report, out, figures, linkedIn string
	serverCPUs                             int
	peer, tokenFile                        string
}

func command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "paper [WORK]",
		Short: "Repeat the experiments of a published work, and compare the results",
		Long: "Repeats the experiments of a published work with its metrics and its number of repetitions. Each table has " +
			"the published\nresults, those of this machine, and the ratios between configs in both; then follow the claims of " +
			"the work, and whether\nthey hold here. Without WORK, lists the works and the duration of their tables.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return list(cmd.OutOrStdout())
			}
			w, err := find(args[0])
			if err != nil {
				return err
			}
			cmd.SilenceUsage = true
			return f.execute(cmd, w)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) (names []string, _ cobra.ShellCompDirective) {
			for _, w := range works {
				names = append(names, w.Name)
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.Flags().BoolVar(&f.short, "short", false, "fewer or shorter repetitions than published: minutes instead "+
		"of hours")
	cmd.Flags().BoolVar(&f.quick, "quick", false, "a smoke run of at most 45 seconds")
	cmd.Flags().StringSliceVar(&f.tables, "tables", nil, "comma-separated tables to measure")
	cmd.Flags().BoolVar(&f.bystander, "bystander", false, "after each measurement, run one more round next to a compute "+
		"job and show how much it slows down")
	cmd.Flags().StringVar(&f.resume, "resume", "", "store finished tables in this directory, and skip those that are "+
		"already there")
	cmd.Flags().StringVar(&f.report, "report", "", "measure nothing: read the results from this file, which --out has "+
		"written")
	cmd.Flags().StringVar(&f.out, "out", "", "write the figures to this file as JSON, compressed if it ends in .gz")
	cmd.Flags().StringVar(&f.figures, "figures", "", "plot the figures of the work (SVG) into this directory")
	cmd.Flags().StringVar(&f.linkedIn, "link", "", "link to plots in this directory from the printed tables")
	cmd.Flags().IntVar(&f.serverCPUs, "server-cpus", 0, "weinhold: CPUs of the servers; the client has the others "+
		"(default half)")
	cmd.Flags().StringVar(&f.peer, "peer", "", "weinhold: address and port of `kerb bench peer` on the client's "+
		"machine")
	cmd.Flags().StringVar(&f.tokenFile, "token-file", "", "weinhold: file with the token of --peer")
	cmd.MarkFlagsMutuallyExclusive("short", "quick")
	for _, other := range []string{"short", "quick", "tables", "resume", "server-cpus", "peer", "bystander"} {
		cmd.MarkFlagsMutuallyExclusive("report", other)
	}
	return cmd
}

func (f flags) mode() Mode {
	switch {
	case f.quick:
		return Quick
	case f.short:
		return Short
	}
	return Published
}

// execute prints and plots the results before it returns an error about invalid tables, so that the results of hours
// are not lost.
func (f flags) execute(cmd *cobra.Command, w *Work) error {
	r, err := f.obtain(cmd, w)
	if err != nil {
		return err
	}
	if err := r.write(cmd.OutOrStdout(), w, f.linkedIn); err != nil {
		return err
	}
	if f.out != "" {
		if err := bench.WriteJSON(f.out, r); err != nil {
			return fmt.Errorf("write figures: %w", err)
		}
	}
	if f.figures != "" {
		if err := os.MkdirAll(f.figures, 0o755); err != nil {
			return err
		}
		if err := r.draw(w, f.figures); err != nil {
			return err
		}
	}
	var unsound []error
	for _, p := range r.Parts {
		unsound = append(unsound, p.Report.Err())
	}
	return errors.Join(unsound...)
}

func (f flags) obtain(cmd *cobra.Command, w *Work) (*Report, error) {
	if f.report != "" {
		return readReport(f.report, w)
	}
	divided := slices.ContainsFunc(w.Tables, func(t Table) bool { return t.Experiment == cpuExperiment })
	if (f.serverCPUs != 0 || f.peer != "") && !divided {
		return nil, fmt.Errorf("--server-cpus and --peer do not apply: no table of %s has a client and servers on separate "+
			"CPUs", w.Name)
	}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	return request{work: w, mode: f.mode(), tables: f.tables, resume: resume(f.resume),
		serverCPUs: f.serverCPUs, peer: f.peer, tokenFile: f.tokenFile, bystander: f.bystander,
		progress: cmd.ErrOrStderr()}.run(ctx)
}

// list prints all works, with the content and the duration of each table.
func list(out io.Writer) error {
	var b strings.Builder
	byName := slices.SortedFunc(slices.Values(works), func(a, b *Work) int { return strings.Compare(a.Name, b.Name) })
	for _, w := range byName {
		fmt.Fprintf(&b, "%s: %s\n", w.Name, w.Title)
		for _, t := range w.Tables {
			fmt.Fprintf(&b, "  %s: %s. %s. About %v; --short %v", t.Name, t.Title, t.Shows, t.Takes[Published], t.Takes[Short])
			if len(t.Loads[Quick]) > 0 {
				fmt.Fprintf(&b, "; --quick %v", t.Takes[Quick])
			}
			b.WriteByte('\n')
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}
