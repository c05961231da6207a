// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// writePlots draws the plots whose name matches into dir, each for a light and a dark background. There is one plot per
// metric and stat: lines over the number at the end of the loads' names (tc/1, echo-64K), with one file per prefix, or
// bars for loads without a number.
func (r *Report) writePlots(dir string, wanted func(name string) bool) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, t := range r.tables() {
		for _, f := range t.figures() {
			name := fileName(strings.Join([]string{r.Experiment, t.metric, t.stat, f.family}, "-"))
			if !wanted(name) {
				continue
			}
			if err := f.save(r, filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("plot %s: %w", name, err)
			}
		}
	}
	return r.writeHistograms(dir, wanted)
}

func fileName(s string) string {
	return strings.Trim(strings.NewReplacer("/", "-", " ", "-", ".", "_").Replace(s), "-")
}

// figure is the part of a table whose loads share a family.
type figure struct {
	*table
	family string
	loads  []string
	lines  bool
}

func (t *table) figures() []figure {
	var families []string
	members := map[string][]string{}
	for _, load := range t.loads {
		family, _, _ := splitLoad(load)
		families = appendNew(families, family)
		members[family] = append(members[family], load)
	}
	if len(families) == len(t.loads) {
		return []figure{{table: t, loads: t.loads}}
	}
	var all []figure
	for _, family := range families {
		_, _, numbers := splitLoad(members[family][0])
		all = append(all, figure{table: t, family: family, loads: members[family], lines: numbers &&
			len(members[family]) > 2})
	}
	return all
}

var loadNumber = regexp.MustCompile(`^(?:(.*)[/-])?([0-9]+)([KM]?)$`)

// splitLoad splits "tc/8" into "tc" and 8, "echo-64K" into "echo" and 65536. A load without a number has no family.
func splitLoad(load string) (family string, n float64, ok bool) {
	parts := loadNumber.FindStringSubmatch(load)
	if parts == nil {
		return "", 0, false
	}
	n, err := strconv.ParseFloat(parts[2], 64)
	return parts[1], n * map[string]float64{"": 1, "K": 1 << 10, "M": 1 << 20}[parts[3]], err == nil
}

func (f figure) save(r *Report, path string) error {
	return saveSVG(path, func(p *plot.Plot) error { return f.draw(r, p) })
}

func (f figure) draw(r *Report, p *plot.Plot) error {
	name := strings.TrimSpace(fmt.Sprintf("%s: %s %s %s", r.Experiment, strings.ReplaceAll(f.metric, "_", " "),
		f.stat, f.family))
	p.Title.Text = cmp.Or(r.title, name)
	p.X.Label.Text, p.Y.Label.Text = cmp.Or(r.x, f.family), f.unit
	p.Y.Min = 0
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding = vg.Millimeter
	var err error
	if f.lines {
		err = f.addLines(p)
	} else {
		err = f.addBars(p)
	}
	if err != nil {
		return err
	}
	p.Y.Max *= 1 + 0.09*float64(len(f.configs)) // room for the legend
	return nil
}

// addLines draws lines, with a logarithmic axis for loads that are far apart. The ticks show the loads.
func (f figure) addLines(p *plot.Plot) error {
	logarithmic := f.spread() > 100
	for i, config := range f.configs {
		var points plotter.XYs
		for _, load := range f.loads {
			if c, ok := f.get(load, config); ok {
				_, n, _ := splitLoad(load)
				if logarithmic {
					n = math.Log10(n)
				}
				points = append(points, plotter.XY{X: n, Y: c.Value})
			}
		}
		if len(points) == 0 {
			continue
		}
		line, dots, err := plotter.NewLinePoints(points)
		if err != nil {
			return err
		}
		line.Color, dots.Color = colour(i), colour(i)
		line.Width, dots.Shape = vg.Points(1.5), plotutil.Shape(i)
		p.Add(line, dots)
		p.Legend.Add(config, line, dots)
	}
	p.X.Tick.Marker = f.ticks(logarithmic)
	return nil
}

func (f figure) spread() float64 {
	_, first, _ := splitLoad(f.loads[0])
	_, last, _ := splitLoad(f.loads[len(f.loads)-1])
	return last / first
}

// ticks returns the loads as ticks.
func (f figure) ticks(logarithmic bool) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for _, load := range f.loads {
		_, n, _ := splitLoad(load)
		at := n
		if logarithmic {
			at = math.Log10(n)
		}
		ticks = append(ticks, plot.Tick{Value: at, Label: load[strings.LastIndexAny(load, "/-")+1:]})
	}
	return ticks
}

func (f figure) addBars(p *plot.Plot) error {
	slot := plotWidth * 0.8 / vg.Length(len(f.loads))
	width := slot * 0.8 / vg.Length(len(f.configs))
	for i, config := range f.configs {
		values := make(plotter.Values, len(f.loads))
		for j, load := range f.loads {
			c, _ := f.get(load, config)
			values[j] = c.Value
		}
		if err := addBars(p, config, values, width, i, len(f.configs)); err != nil {
			return err
		}
	}
	p.NominalX(f.loads...)
	p.X.Min, p.X.Max = -0.5, float64(len(f.loads))-0.5
	return nil
}

// addBars draws bar i of n of each group.
func addBars(p *plot.Plot, name string, values plotter.Values, width vg.Length, i, n int) error {
	bars, err := plotter.NewBarChart(values, width)
	if err != nil {
		return err
	}
	bars.Color, bars.LineStyle.Color, bars.LineStyle.Width = colour(i), color.Transparent, 0
	bars.Offset = width * (vg.Length(i) - vg.Length(n-1)/2)
	p.Add(bars)
	p.Legend.Add(name, bars)
	return nil
}
