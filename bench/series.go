// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// Series are the single values of a metric, one list for each round.
type Series struct {
	Config string      `json:"config"`
	Load   string      `json:"load"`
	Metric string      `json:"metric"`
	Unit   string      `json:"unit"`
	Rounds [][]float64 `json:"rounds"`
}

// Keep adds one round's values to a series.
func (r *Run) Keep(config, load, metric, unit string, values []float64) {
	all := &r.report.Series
	i := slices.IndexFunc(*all, func(s Series) bool { return s.Config == config && s.Load == load && s.Metric == metric })
	if i < 0 {
		i = len(*all)
		*all = append(*all, Series{Config: config, Load: load, Metric: metric, Unit: unit})
	}
	(*all)[i].Rounds = append((*all)[i].Rounds, values)
}

// All returns the values of all rounds.
func (s Series) All() []float64 { return slices.Concat(s.Rounds...) }

// Each returns, for each position in a round, the median over the rounds that have it.
func (s Series) Each() (medians []float64) {
	places := 0
	for _, round := range s.Rounds {
		places = max(places, len(round))
	}
	for i := range places {
		var column []float64
		for _, round := range s.Rounds {
			if i < len(round) {
				column = append(column, round[i])
			}
		}
		medians = append(medians, Median(column))
	}
	return medians
}

// Figure is a plot of one metric, in the form of a published work.
type Figure struct {
	// Kind is box (Tukey's whiskers, up to 1.5 times the box; with Stat, of the rounds' values of it), cdf, each (a bar
	// for each position in a round), regression (medians over the number in the loads' names), rates (lines over that
	// number), histogram, or bars (a group for each load).
	Kind         string
	Name, Title  string
	Metric, Stat string
	Load, X      string
	Below, Width float64  // of histograms: upper bound of the last bin, and width of each
	Logarithmic  bool     // of histograms: lines, with both axes logarithmic; of rates: the vertical axis
	Step         float64  // of each: distance of positions; 0 means 1
	Smooth       float64  // of each: weight of a value in the moving average; 0: no average
	Computed     []Series // of each: replaces the series of the report
}

// Draw writes a figure as path-light.svg and path-dark.svg.
func (r *Report) Draw(f Figure, path string) error {
	add := map[string]func(*plot.Plot, Figure) error{"box": r.addTukey, "cdf": r.addCDF, "each": r.addEach,
		"regression": r.addRegression, "rates": r.addRates, "histogram": r.addFixedBins,
		"bars": r.addGroups}[f.Kind]
	if add == nil {
		return fmt.Errorf("unknown kind of plot %q", f.Kind)
	}
	return saveSVG(path, func(p *plot.Plot) error {
		p.Title.Text, p.X.Label.Text = f.Title, f.X
		p.Legend.Top, p.Legend.Padding = true, vg.Millimeter
		return add(p, f)
	})
}

func (r *Report) seriesOf(f Figure) (all []Series) {
	if f.Computed != nil {
		return f.Computed
	}
	if f.Stat != "" {
		return r.roundsOf(f)
	}
	for _, s := range r.Series {
		if s.Metric == f.Metric && (f.Load == "" || s.Load == f.Load) && len(s.All()) > 0 {
			all = append(all, s)
		}
	}
	return all
}

// roundsOf returns the rounds' values of a stat.
func (r *Report) roundsOf(f Figure) (all []Series) {
	for _, c := range r.Cells {
		if c.Metric == f.Metric && c.Stat == f.Stat && (f.Load == "" || c.Load == f.Load) && len(c.Rounds) > 0 {
			all = append(all, Series{Config: c.Config, Load: c.Load, Metric: c.Metric, Unit: c.Unit,
				Rounds: [][]float64{c.Rounds}})
		}
	}
	return all
}

// HasSeries reports whether a figure of single values has any.
func (r *Report) HasSeries(f Figure) bool { return len(r.seriesOf(f)) > 0 }

func (r *Report) addTukey(p *plot.Plot, f Figure) error {
	var names []string
	for i, s := range r.seriesOf(f) {
		if n := len(s.All()); f.Stat != "" && n == 1 {
			p.X.Label.Text = "one round"
		} else if f.Stat != "" {
			p.X.Label.Text = fmt.Sprintf("%d rounds", n)
		}
		b, err := plotter.NewBoxPlot(vg.Centimeter, float64(i), plotter.Values(s.All()))
		if err != nil {
			return err
		}
		b.FillColor, b.GlyphStyle.Color = colour(i), p.X.Color
		b.BoxStyle.Color, b.MedianStyle.Color, b.WhiskerStyle.Color = p.X.Color, p.X.Color, p.X.Color
		p.Add(b)
		p.Y.Label.Text, names = s.Unit, append(names, s.Config)
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.5, float64(len(names))-0.5
	if f.Stat != "" { // few rounds may have no range
		p.Y.Min, p.Y.Max = 0, 1.05*p.Y.Max
	}
	return nil
}

// logScaleRatio is the ratio of the largest to the smallest value above which the axis of a CDF is logarithmic.
const logScaleRatio = 50

func (r *Report) addCDF(p *plot.Plot, f Figure) error {
	p.Y.Label.Text, p.Y.Min, p.Y.Max, p.Legend.Top = "share of all values", 0, 1, false
	for i, s := range r.seriesOf(f) {
		values := slices.Sorted(slices.Values(s.All()))
		points := make(plotter.XYs, len(values))
		for j, v := range values {
			points[j] = plotter.XY{X: v, Y: float64(j+1) / float64(len(values))}
		}
		if err := addLine(p, s.Config, points, i, plotter.PostStep); err != nil {
			return err
		}
		p.X.Label.Text = s.Unit
	}
	if p.X.Min > 0 && p.X.Max > logScaleRatio*p.X.Min {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	return nil
}

func addLine(p *plot.Plot, name string, points plotter.XYs, i int, step plotter.StepKind) error {
	line, err := plotter.NewLine(points)
	if err != nil {
		return err
	}
	line.StepStyle, line.Width, line.Color = step, vg.Points(1.2), colour(i)
	line.Dashes = plotutil.Dashes(i / len(palette))
	p.Add(line)
	p.Legend.Add(name, line)
	return nil
}

// addEach draws points, since bars of a hundred threads would be thinner than a line.
func (r *Report) addEach(p *plot.Plot, f Figure) error {
	p.Y.Min = 0
	for i, s := range r.seriesOf(f) {
		values := smooth(s.Each(), f.Smooth)
		points := make(plotter.XYs, len(values))
		for j, v := range values {
			points[j] = plotter.XY{X: float64(j) * cmp.Or(f.Step, 1), Y: v}
		}
		if err := addLine(p, s.Config, points, i, plotter.MidStep); err != nil {
			return err
		}
		p.Y.Label.Text = s.Unit
	}
	p.Y.Max *= 1.2 // room for the legend
	return nil
}

// smooth returns the exponentially weighted moving average.
func smooth(values []float64, weight float64) []float64 {
	if weight == 0 {
		return values
	}
	out := slices.Clone(values)
	for i := 1; i < len(out); i++ {
		out[i] = weight*values[i] + (1-weight)*out[i-1]
	}
	return out
}

// addRates draws a line for each config. A logarithmic axis omits zeros.
func (r *Report) addRates(p *plot.Plot, f Figure) error {
	if p.Legend.Left = true; f.Logarithmic {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	} else {
		p.Y.Min = 0
	}
	for i, config := range r.configs() {
		points := r.overLoads(config, f.Metric, f.Stat)
		if f.Logarithmic {
			points = slices.DeleteFunc(points, func(at plotter.XY) bool { return at.Y <= 0 })
		}
		if len(points) == 0 {
			continue
		}
		slices.SortFunc(points, func(a, b plotter.XY) int { return cmp.Compare(a.X, b.X) })
		if err := addLine(p, config, points, i, plotter.NoStep); err != nil {
			return err
		}
		c, _ := r.find(func(c Cell) bool { return c.Config == config && c.Metric == f.Metric && c.Stat == f.Stat })
		p.Y.Label.Text = c.Unit
	}
	if p.X.Min > 0 && p.X.Max > logScaleRatio*p.X.Min {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	return nil
}

// Line is a straight line through points, by least squares.
type Line struct{ Slope, Intercept float64 }

// Regression fits a line to a metric over the number in the loads' names; ok is false with fewer than two loads.
func (r *Report) Regression(config, metric, stat string) (l Line, ok bool) {
	points := r.overLoads(config, metric, stat)
	if len(points) < 2 {
		return l, false
	}
	var x, y []float64
	for _, p := range points {
		x, y = append(x, p.X), append(y, p.Y)
	}
	mx, my, xy, xx := Mean(x), Mean(y), 0.0, 0.0
	for i := range x {
		xy += (x[i] - mx) * (y[i] - my)
		xx += (x[i] - mx) * (x[i] - mx)
	}
	l.Slope = xy / xx
	l.Intercept = my - l.Slope*mx
	return l, !math.IsNaN(l.Slope)
}

func (r *Report) overLoads(config, metric, stat string) (points plotter.XYs) {
	for _, c := range r.Cells {
		if _, n, ok := splitLoad(c.Load); ok && c.Config == config && c.Metric == metric && c.Stat == stat {
			points = append(points, plotter.XY{X: n, Y: c.Value})
		}
	}
	return points
}

func (r *Report) addRegression(p *plot.Plot, f Figure) error {
	p.Y.Min, p.Legend.Left = 0, true
	for i, config := range r.configs() {
		points := r.overLoads(config, f.Metric, f.Stat)
		line, ok := r.Regression(config, f.Metric, f.Stat)
		if !ok {
			continue
		}
		scatter, err := plotter.NewScatter(points)
		if err != nil {
			return err
		}
		scatter.GlyphStyle = draw.GlyphStyle{Color: colour(i), Radius: vg.Points(2.5), Shape: draw.CircleGlyph{}}
		fit := plotter.NewFunction(func(x float64) float64 { return line.Intercept + line.Slope*x })
		fit.Color, fit.Width = colour(i), vg.Points(1)
		p.Add(scatter, fit)
		p.Legend.Add(fmt.Sprintf("%s: %.3g + %.3g n", config, line.Intercept, line.Slope), scatter)
		p.X.Max = max(p.X.Max, points[len(points)-1].X)
		c, _ := r.find(func(c Cell) bool { return c.Config == config && c.Metric == f.Metric && c.Stat == f.Stat })
		p.Y.Label.Text = c.Unit
	}
	p.X.Min = 0
	p.Y.Max *= 1.2
	return nil
}

func (r *Report) addGroups(p *plot.Plot, f Figure) error {
	for _, t := range r.tables() {
		if t.metric != f.Metric || t.stat != f.Stat {
			continue
		}
		p.Y.Label.Text, p.Y.Min = t.unit, 0
		if err := (figure{table: t, loads: t.loads}).addBars(p); err != nil {
			return err
		}
		p.Y.Max *= 1 + 0.09*float64(len(t.configs)) // room for the legend
	}
	return nil
}

// addFixedBins draws counts in bins of equal width; the last bin includes all larger values.
func (r *Report) addFixedBins(p *plot.Plot, f Figure) error {
	shown := r.histogramsOf(f)
	if f.Logarithmic {
		return (&Report{Histograms: shown, title: f.Title}).addHistogram(p, shown[0])
	}
	n := int(f.Below / f.Width)
	p.Y.Label.Text = "% of packets"
	width := plotWidth * 0.8 / vg.Length(n+1) / vg.Length(max(1, len(shown)))
	for i, h := range shown {
		if err := addBars(p, h.Config, h.fixed(n, f.Width), width, i, len(shown)); err != nil {
			return err
		}
		p.X.Label.Text = h.Unit
	}
	var names []string
	for i := range n {
		names = append(names, strconv.Itoa(int(float64(i)*f.Width)))
	}
	p.NominalX(append(names, "later")...)
	p.X.Max = float64(n) + 0.5
	p.Y.Max *= 1 + 0.09*float64(len(shown)) // room for the legend
	return nil
}

// histogramsOf returns one histogram per config, over all loads if the figure names none.
func (r *Report) histogramsOf(f Figure) []Histogram {
	all := &Run{report: &Report{}}
	for _, h := range r.Histograms {
		if h.Metric == f.Metric && (f.Load == "" || h.Load == f.Load) {
			h.Load, h.Group = "", ""
			all.Spread(h)
		}
	}
	return all.report.Histograms
}

// fixed distributes the counts of bins evenly over their widths. There are at least four bins per power of two.
func (h Histogram) fixed(n int, width float64) plotter.Values {
	values := make(plotter.Values, n+1)
	var all, before float64
	for _, b := range h.Bins {
		from := max(before, 0.8*b.UpTo)
		for i := range values {
			low, high := float64(i)*width, float64(i+1)*width
			if i == n {
				high = math.Inf(1)
			}
			if part := min(high, b.UpTo) - max(low, from); part > 0 {
				values[i] += float64(b.Count) * part / (b.UpTo - from)
			}
		}
		all, before = all+float64(b.Count), b.UpTo
	}
	for i := range values {
		values[i] *= 100 / max(1, all)
	}
	return values
}
