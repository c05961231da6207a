// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// boxStats are what a box plot is made of: whiskers, quartiles and the median.
var boxStats = [5]string{"p1", "p25", "p50", "p75", "p99"}

// box is one config's, in the order of boxStats.
type box struct {
	config string
	values [5]float64
}

// writeBoxes draws a plot for each metric and load that has all stats of a box
// for at least two configs.
func (r *Report) writeBoxes(dir string, wanted func(string) bool) error {
	for _, t := range r.tables() {
		if t.stat != boxStats[1] {
			continue
		}
		for _, load := range t.loads {
			boxes := r.boxes(t, load)
			name := fileName(strings.Join([]string{r.Experiment, t.metric, "boxes", load}, "-"))
			if len(boxes) < 2 || !wanted(name) {
				continue
			}
			title := fmt.Sprintf("%s: %s %s, quartiles, p1 and p99", r.Experiment, strings.ReplaceAll(t.metric, "_", " "), load)
			if err := saveBoxes(boxes, title, t.unit, filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("plot %s: %w", name, err)
			}
		}
	}
	return nil
}

func (r *Report) boxes(t *table, load string) []box {
	var all []box
	for _, config := range t.configs {
		b, whole := box{config: config}, true
		for i, stat := range boxStats {
			c, ok := r.Find(config, load, t.metric, stat)
			b.values[i], whole = c.Value, whole && ok && c.Value > 0
		}
		if whole {
			all = append(all, b)
		}
	}
	return all
}

// saveBoxes draws them on a logarithmic scale: what is compared here may lie
// factors apart.
func saveBoxes(boxes []box, title, unit, path string) error {
	return saveSVG(path, func(p *plot.Plot) error { return addBoxes(p, boxes, title, unit) })
}

func addBoxes(p *plot.Plot, boxes []box, title, unit string) error {
	p.Title.Text, p.Y.Label.Text = title, unit
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	var names []string
	for i, b := range boxes {
		drawn, err := plotter.NewBoxPlot(vg.Centimeter, float64(i), plotter.Values(b.values[:]))
		if err != nil {
			return err
		}
		// What it computed of five values as if they were the sample.
		drawn.AdjLow, drawn.Quartile1, drawn.Median, drawn.Quartile3, drawn.AdjHigh =
			b.values[0], b.values[1], b.values[2], b.values[3], b.values[4]
		drawn.Outside, drawn.FillColor = nil, colour(i)
		drawn.BoxStyle.Color, drawn.MedianStyle.Color, drawn.WhiskerStyle.Color = p.X.Color, p.X.Color, p.X.Color
		p.Add(drawn)
		names = append(names, b.config)
	}
	p.NominalX(names...)
	return nil
}
