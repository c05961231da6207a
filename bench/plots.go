// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"path"
	"slices"

	"github.com/spf13/cobra"
)

// plotFlags are the flags of `bench plot`.
type plotFlags struct {
	dir  string
	only []string
	selection
	ratio    bool
	title, x string
}

func plotCommand() *cobra.Command {
	var f plotFlags
	cmd := &cobra.Command{
		Use:   "plot REPORT",
		Short: "Plot a report",
		Long: "Plots a report that a benchmark wrote with --out, as SVG, once for light and once for dark backgrounds. " +
			"Plots are\n" +
			"named EXPERIMENT-METRIC-STAT-LOADS, histograms EXPERIMENT-METRIC-histogram-LOAD-GROUP.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cmd.SilenceUsage = true
			return f.draw(args[0])
		},
	}
	cmd.Flags().StringVar(&f.dir, "plots", ".", "write the plots into this directory")
	cmd.Flags().StringSliceVar(&f.only, "only", nil, "comma-separated names of the plots to draw; * matches "+
		"any text")
	f.selection.flags(cmd)
	cmd.Flags().StringVar(&f.title, "title", "", "title of the plots, instead of their names")
	cmd.Flags().StringVar(&f.x, "x", "", "label of the horizontal axis")
	cmd.Flags().BoolVar(&f.ratio, "ratio", false, "draw ratios to the baseline")
	return cmd
}

// draw reports patterns that match nothing as errors: an empty directory would look like a success.
func (f plotFlags) draw(file string) error {
	report, err := readReport(file)
	if err != nil {
		return err
	}
	if f.ratio {
		report.Cells = report.ratios()
	}
	if report.Cells = f.pick(report.Cells); len(report.Cells) == 0 {
		return fmt.Errorf("%s has no results for these configs and loads", file)
	}
	report.title, report.x = f.title, f.x
	drawn := 0
	wanted := func(name string) bool {
		if len(f.only) > 0 && !matches(f.only, name) {
			return false
		}
		drawn++
		return true
	}
	if err := report.writePlots(f.dir, wanted); err != nil {
		return err
	}
	if drawn == 0 {
		return fmt.Errorf("%s has no plot with this name", file)
	}
	return nil
}

// selection filters the cells of a report by configs and loads; by default it selects all.
type selection struct{ configs, loads []string }

func (f *selection) flags(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.configs, "configs", nil, "comma-separated configs to show, in this order")
	cmd.Flags().StringSliceVar(&f.loads, "loads", nil, "comma-separated loads to show; patterns such as veth/* match "+
		"several")
}

// pick returns the selected cells in the order of the configs.
func (f selection) pick(cells []Cell) (picked []Cell) {
	for _, c := range cells {
		if (len(f.configs) == 0 || slices.Contains(f.configs, c.Config)) && (len(f.loads) == 0 || matches(f.loads, c.Load)) {
			picked = append(picked, c)
		}
	}
	slices.SortStableFunc(picked, func(a, b Cell) int {
		return slices.Index(f.configs, a.Config) - slices.Index(f.configs, b.Config)
	})
	return picked
}

func matches(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		ok, err := path.Match(pattern, name)
		return err == nil && ok
	})
}

// ratios returns the cells of all configs but the baseline, as their ratios to it.
func (r *Report) ratios() (cells []Cell) {
	r.setRatios()
	for _, c := range r.Cells {
		if c.Ratio != nil {
			c.Value, c.Unit, c.Rounds = c.Ratio.Median, "ratio to "+r.Baseline, nil
			cells = append(cells, c)
		}
	}
	return cells
}
