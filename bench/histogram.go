// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
)

// Bin is the number of values up to UpTo and above that of the previous bin. In JSON it is a pair.
type Bin struct {
	UpTo  float64
	Count uint64
}

// MarshalJSON implements json.Marshaler.
func (b Bin) MarshalJSON() ([]byte, error) { return json.Marshal([2]any{b.UpTo, b.Count}) }

// UnmarshalJSON implements json.Unmarshaler.
func (b *Bin) UnmarshalJSON(data []byte) error {
	return json.Unmarshal(data, &[2]any{&b.UpTo, &b.Count})
}

// Histogram is the distribution of a metric over all rounds. Histograms of a group are plotted together with that of
// the baseline.
type Histogram struct {
	Config string `json:"config"`
	Group  string `json:"group"`
	Load   string `json:"load"`
	Metric string `json:"metric"`
	Unit   string `json:"unit"`
	Bins   []Bin  `json:"bins"` // in ascending order
}

// Spread adds the values of another round to a histogram.
func (r *Run) Spread(round Histogram) {
	all := &r.report.Histograms
	i := slices.IndexFunc(*all, func(h Histogram) bool {
		return h.Config == round.Config && h.Load == round.Load && h.Metric == round.Metric
	})
	if i < 0 {
		i = len(*all)
		*all = append(*all, round)
		(*all)[i].Bins = nil
	}
	h := &(*all)[i]
	for _, b := range round.Bins {
		at, found := slices.BinarySearchFunc(h.Bins, b, func(x, y Bin) int { return cmp.Compare(x.UpTo, y.UpTo) })
		if !found {
			h.Bins = slices.Insert(h.Bins, at, Bin{UpTo: b.UpTo})
		}
		h.Bins[at].Count += b.Count
	}
}

// tails are the thresholds, in a histogram's unit, for which WriteTable shows the fraction of values above.
var tails = []float64{3, 10, 30, 100, 300, 1000}

// above returns the fraction of all rounds' values in bins that reach above a limit.
func (h Histogram) above(limit float64) float64 {
	var all, above uint64
	for _, b := range h.Bins {
		all += b.Count
		if b.UpTo > limit {
			above += b.Count
		}
	}
	return float64(above) / float64(max(all, 1))
}

// writeTails prints the fractions of all values above thresholds. The median of rounds' percentiles says less about
// tails, since a single outlier may determine a round's percentile.
func (r *Report) writeTails(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for i, h := range r.Histograms {
		if i == 0 || h.Load != r.Histograms[i-1].Load || h.Metric != r.Histograms[i-1].Metric {
			fmt.Fprintf(tw, "\n%s, %% of all rounds above", heading(h.Metric, h.Unit))
			for _, limit := range tails {
				fmt.Fprintf(tw, "\t%g", limit)
			}
			fmt.Fprintln(tw)
		}
		fmt.Fprintf(tw, "%s %s", h.Load, h.Config)
		for _, limit := range tails {
			fmt.Fprintf(tw, "\t%.3g", 100*h.above(limit))
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// writeHistograms draws a plot for each load, metric and group: a line for each config, both axes logarithmic, so that
// rare large values are visible.
func (r *Report) writeHistograms(dir string, wanted func(string) bool) error {
	drawn := map[string]bool{}
	for _, h := range r.Histograms {
		name := fileName(fmt.Sprintf("%s-%s-histogram-%s-%s", r.Experiment, h.Metric, h.Load, h.Group))
		if drawn[name] || !wanted(name) {
			continue
		}
		drawn[name] = true
		if err := r.saveHistogram(h, filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("plot %s: %w", name, err)
		}
	}
	return nil
}

// saveHistogram draws a histogram and the others of its group.
func (r *Report) saveHistogram(first Histogram, path string) error {
	return saveSVG(path, func(p *plot.Plot) error { return r.addHistogram(p, first) })
}

func (r *Report) addHistogram(p *plot.Plot, first Histogram) error {
	p.Title.Text = cmp.Or(r.title, fmt.Sprintf("%s: %s, %s, %s", r.Experiment, first.Metric, first.Load, first.Group))
	p.X.Label.Text, p.Y.Label.Text = first.Unit, "count"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Legend.Top = true
	i := 0
	for _, h := range r.Histograms {
		with := h.Group == first.Group || h.Config == r.Baseline
		if h.Load != first.Load || h.Metric != first.Metric || !with || len(h.Bins) == 0 {
			continue
		}
		if err := addLine(p, h.Config, h.points(), i, plotter.PostStep); err != nil {
			return err
		}
		i++
	}
	return nil
}

// points omits values that a logarithmic axis cannot show.
func (h Histogram) points() (xy plotter.XYs) {
	for _, b := range h.Bins {
		if b.UpTo > 0 && b.Count > 0 {
			xy = append(xy, plotter.XY{X: b.UpTo, Y: float64(b.Count)})
		}
	}
	return xy
}
