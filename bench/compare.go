// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

func compareCommand() *cobra.Command {
	var f selection
	cmd := &cobra.Command{
		Use:   "compare A B",
		Short: "Compare two reports, for example of two kernels, machines or versions",
		Long: "Prints the results of two reports of the same experiment, written with --out, and their ratio (B to A). The " +
			"rounds of\n" +
			"two reports do not alternate, so the ratio includes any difference in background load.",
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			cmd.SilenceUsage = true
			var reports [2]*Report
			for i, path := range args {
				r, err := readReport(path)
				if err != nil {
					return err
				}
				r.Cells = f.pick(r.Cells)
				reports[i] = r
			}
			return compare(cmd.OutOrStdout(), reports[0], reports[1])
		},
	}
	f.flags(cmd)
	return cmd
}

// compare prints a table per metric and stat, with the cells that are in both reports.
func compare(w io.Writer, a, b *Report) error {
	if a.Experiment != b.Experiment {
		return fmt.Errorf("the reports are of different experiments, %s and %s", a.Experiment,
			b.Experiment)
	}
	fmt.Fprintf(w, "A: %s\nB: %s\n", a.Where(), b.Where())
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	common := 0
	for _, t := range a.tables() {
		rows := 0
		for _, load := range t.loads {
			for _, config := range t.configs {
				ca, inA := t.get(load, config)
				cb, inB := b.Find(config, load, t.metric, t.stat)
				if !inA || !inB {
					continue
				}
				if rows++; rows == 1 {
					fmt.Fprintf(tw, "\n%s, %s\t\tA\tB\tB/A\n", heading(t.metric, t.unit), t.stat)
				}
				fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", load, config, ca.text(), cb.text(), ratio(ca.Value, cb.Value))
			}
		}
		common += rows
	}
	if common == 0 {
		return errors.New("the reports have no config and load in common")
	}
	if only := len(a.Cells) + len(b.Cells) - 2*common; only > 0 {
		fmt.Fprintf(tw, "\n%d results are in only one of the reports\n", only)
	}
	return tw.Flush()
}

func ratio(a, b float64) string {
	if a == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", b/a)
}

// text returns the value with the spread of its rounds.
func (c Cell) text() string {
	if len(c.Rounds) < 2 {
		return number(c.Value)
	}
	return number(c.Value) + " ±" + number(Stddev(c.Rounds))
}
