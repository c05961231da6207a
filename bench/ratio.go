// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
)

// Ratio compares a cell with the baseline's. Since rounds alternate, each round is divided by the adjacent round of the
// baseline. A config is not slower if the lower quartile is at most 1.00.
type Ratio struct {
	Median float64 `json:"median"`
	Lower  float64 `json:"lowerQuartile"`
	Upper  float64 `json:"upperQuartile"`
}

// totals are stats over all rounds, not medians of rounds.
var totals = []string{"sum", "max", "min"}

// ratioTo divides a cell by another, round by round, or only the values if the numbers of rounds differ.
func (c Cell) ratioTo(base Cell) (r Ratio, ok bool) {
	if base.Value == 0 {
		return r, false
	}
	if len(c.Rounds) != len(base.Rounds) || len(c.Rounds) == 0 || slices.Contains(base.Rounds, 0) ||
		slices.Contains(totals, c.Stat) {
		whole := c.Value / base.Value
		return Ratio{whole, whole, whole}, true
	}
	ratios := make([]float64, len(c.Rounds))
	for i := range ratios {
		ratios[i] = c.Rounds[i] / base.Rounds[i]
	}
	return Ratio{Median(ratios), Percentile(ratios, 25), Percentile(ratios, 75)}, true
}

// setRatios sets the ratios of all cells to the baseline's cells in the report.
func (r *Report) setRatios() {
	for i := range r.Cells {
		c := &r.Cells[i]
		base, ok := r.Find(r.Baseline, c.Load, c.Metric, c.Stat)
		if !ok || c.Config == r.Baseline {
			continue
		}
		if ratio, ok := c.ratioTo(base); ok {
			c.Ratio = &ratio
		}
	}
}

func (r Ratio) text() string {
	if r.Lower == r.Upper {
		return fmt.Sprintf("(%.2fx)", r.Median)
	}
	return fmt.Sprintf("(%.2fx, %.2f-%.2f)", r.Median, r.Lower, r.Upper)
}

func tableCommand() *cobra.Command {
	var f selection
	cmd := &cobra.Command{
		Use:   "table REPORT",
		Short: "Print the tables of a report",
		Long: "Prints a report that a benchmark wrote with --out. Each ratio is the median over rounds, whose " +
			"measurements\nalternate between configs, followed by the lower and upper quartile.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cmd.SilenceUsage = true
			r, err := readReport(args[0])
			if err != nil {
				return err
			}
			r.setRatios()
			if r.Cells = f.pick(r.Cells); len(r.Cells) == 0 {
				return fmt.Errorf("%s has no results for these configs and loads", args[0])
			}
			return r.WriteTable(cmd.OutOrStdout())
		},
	}
	f.flags(cmd)
	return cmd
}
