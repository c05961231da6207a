// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/internal/resource"
)

// openMetrics is a value of --output that only the history supports.
const openMetrics = "openmetrics"

func (a *app) historyCommand() *cobra.Command {
	since, follow := "1h", false
	c := &cobra.Command{
		Use:   "history [NAME]",
		Short: "Show traffic, drops and the agent's resource use over time; or those of one service or module",
		Long: `Shows samples of the agent: packets and drops of services, packets of modules by verdict and the 99th percentile of
their latency (of one module the median, too), CPU and memory of the agent, problems; for one service or module, all of
its series. A graph is scaled to its maximum, from the time --since on the left to now on the right; it is empty where
nothing was measured. The history is off unless kerb.yaml has the line history: {}; --follow works without it.

-o openmetrics prints samples with timestamps, which promtool converts to blocks for a Prometheus server.`,
		Example: "  kerb history\n  kerb history web --since 24h\n  kerb history web --follow\n" +
			"  kerb history --since 30d -o openmetrics > node.om\n" +
			"  promtool tsdb create-blocks-from openmetrics node.om data",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeSampled,
		RunE: func(cmd *cobra.Command, args []string) error {
			span, err := parseSpan(since)
			if err != nil {
				return &usageError{err}
			}
			name := strings.Join(args, "")
			if follow {
				return ignoreInterrupt(cmd.Context(), a.followHistory(cmd.Context(), cmd.OutOrStdout(), name))
			}
			h, err := a.readHistory(cmd.Context(), name, span)
			if err != nil {
				return err
			}
			return a.printHistory(cmd.OutOrStdout(), h, name, span)
		},
	}
	c.Annotations = map[string]string{answersMark: openMetrics}
	c.Flags().StringVar(&since, "since", since, "how far back: a time such as 10m, 24h or 30d")
	c.Flags().BoolVar(&follow, "follow", false, "show each second of the last 5 minutes, until interrupted")
	c.MarkFlagsMutuallyExclusive("since", "follow")
	return c
}

// completeSampled completes the names of services and modules.
func (a *app) completeSampled(cmd *cobra.Command, args []string, word string) (names []string,
	directive cobra.ShellCompDirective) {
	for _, k := range []kind{kindOf(resource.Service), kindOf(resource.Module)} {
		some, d := k.complete(a)(cmd, args, word)
		names, directive = append(names, some...), d
	}
	return names, directive
}

// parseSpan parses a duration, also in days.
func parseSpan(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n uint64
		n, err = strconv.ParseUint(days, 10, 16)
		d = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || d < time.Second || d > 30*24*time.Hour {
		return 0, fmt.Errorf("--since %q: must be a time from 1s to 30d, such as 10m, 24h or 7d", text)
	}
	return d, nil
}

// sampled is a series with its samples.
type sampled struct {
	v1alpha1.Series
	Values v1alpha1.Values `json:"values"`
	Max    v1alpha1.Values `json:"max,omitempty"`
}

// sampledHistory has the samples of the agent.
type sampledHistory struct {
	Step    int        `json:"step"`
	Omitted int        `json:"omitted,omitempty"`
	Times   []float64  `json:"times"`
	Series  []*sampled `json:"series"`
}

// take adds a line of the agent's response. It keeps the newest samples.
func (h *sampledHistory) take(l v1alpha1.HistoryLine, keep int) error {
	if l.Error != "" {
		return errors.New(l.Error)
	}
	if l.Step > 0 {
		h.begin(l)
		return nil
	}
	if len(l.Values) != len(h.Series) || len(l.Max) > 0 && len(l.Max) != len(h.Series) {
		return errors.New("the agent answered with a sample of other series")
	}
	drop := max(0, len(h.Times)+1-keep)
	h.Times = append(h.Times[drop:], l.Time)
	for i, s := range h.Series {
		s.Values = append(s.Values[drop:], l.Values[i])
		if len(l.Max) > 0 {
			s.Max = append(s.Max[drop:], l.Max[i])
		}
	}
	return nil
}

// begin sets the series of the values that follow. Known series keep their samples.
func (h *sampledHistory) begin(l v1alpha1.HistoryLine) {
	before := map[v1alpha1.Series]*sampled{}
	if l.Step == h.Step {
		for _, s := range h.Series {
			before[s.Series] = s
		}
	} else {
		h.Times = []float64{}
	}
	h.Step, h.Omitted, h.Series = l.Step, l.Omitted, []*sampled{}
	for _, series := range l.Series {
		s := before[series]
		if s == nil {
			s = &sampled{Series: series, Values: make(v1alpha1.Values, len(h.Times))}
			for i := range s.Values {
				s.Values[i] = float32(math.NaN())
			}
		}
		h.Series = append(h.Series, s)
	}
}

// readLines calls each for the lines of a response until it ends.
func (a *app) readLines(ctx context.Context, q url.Values, each func(v1alpha1.HistoryLine) error) error {
	body, err := a.stream(ctx, "/v1/history?"+q.Encode())
	if err != nil {
		return err
	}
	defer body.Close()
	return eachLine(body, each)
}

func (a *app) readHistory(ctx context.Context, name string, span time.Duration) (h sampledHistory, err error) {
	q := url.Values{"since": {strconv.Itoa(int(span.Seconds()))}, "name": {name}}
	return h, a.readLines(ctx, q, func(l v1alpha1.HistoryLine) error { return h.take(l, math.MaxInt32) })
}

// followed is the number of samples that --follow shows: 5 minutes.
const followed = 300

func (a *app) followHistory(ctx context.Context, w io.Writer, name string) error {
	if a.output == openMetrics {
		return &usageError{errors.New("-o openmetrics has an end, and --follow has none: use one of them")}
	}
	var h sampledHistory
	var shown time.Time
	return a.readLines(ctx, url.Values{"follow": {"true"}, "name": {name}}, func(l v1alpha1.HistoryLine) error {
		if a.output == "json" {
			return json.NewEncoder(w).Encode(l)
		}
		if err := h.take(l, followed); err != nil || l.Step > 0 || time.Since(shown) < time.Second/2 {
			return err // earlier samples arrive immediately
		}
		shown = time.Now()
		if isTerminal(w) {
			fmt.Fprint(w, "\x1b[H\x1b[2J")
		}
		return a.printHistory(w, h, name, followed*time.Second)
	})
}

// printHistory prints samples. It omits series without samples.
func (a *app) printHistory(w io.Writer, h sampledHistory, name string, span time.Duration) error {
	shown := []*sampled{}
	for _, s := range h.Series {
		if s.figures().samples > 0 {
			shown = append(shown, s)
		}
	}
	if h.Series = shown; a.output == openMetrics {
		all := make([]promtext.Timed, len(shown))
		for i, s := range shown {
			all[i] = promtext.Timed{Name: s.Name, Labels: s.Labels(), Times: h.Times, Values: s.Values}
		}
		return promtext.WriteOpenMetrics(w, all)
	}
	return a.print(w, h, func(w io.Writer) {
		if len(shown) == 0 {
			fmt.Fprintln(w, "nothing was sampled in this time: samples come every 10 s, from the start of the agent on")
			return
		}
		line(w, "OF", "METRIC", "MEAN", "MAX", "LAST", "SINCE "+strings.TrimSuffix(span.String(), "0s"))
		for _, s := range shown {
			if name == "" && s.detail() {
				continue
			}
			f := s.figures()
			line(w, oneLine(cmp.Or(s.Service, s.Module, "node")), oneLine(s.metric()),
				s.number(f.mean), s.number(f.most), s.number(f.last), "|"+s.graph(h.Times, span, f.most)+"|")
		}
		if h.Omitted > 0 {
			fmt.Fprintf(w, "%d series are not kept: there is room for 640\n", h.Omitted)
		}
	})
}

// oneLine keeps a text from breaking a table.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// detail reports whether a series is shown only of one service or module.
func (s *sampled) detail() bool {
	return strings.Contains(s.Name, "_bytes") && s.Service+s.Module != "" || strings.Contains(s.Name, "_p50_") ||
		s.Reason != ""
}

// metric returns the name, with the labels that distinguish it from others of the same service or module.
func (s *sampled) metric() string {
	labels := strings.Trim(strings.Join([]string{s.Direction, s.Verdict, s.Reason}, ","), ",")
	if labels == "" {
		return s.Name
	}
	return s.Name + " " + strings.ReplaceAll(labels, ",,", ",")
}

func (s *sampled) number(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	if strings.HasSuffix(s.Name, "_memory_bytes") {
		return fmt.Sprintf("%.1fMi", v/(1<<20))
	}
	if strings.HasSuffix(s.Name, "_seconds") {
		return brief(time.Duration(math.Round(v * 1e9)))
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// brief rounds to three or four digits: the width of histogram buckets is a fourth.
func brief(d time.Duration) string {
	switch {
	case d >= time.Millisecond:
		d = d.Round(10 * time.Microsecond)
	case d >= time.Microsecond:
		d = d.Round(10 * time.Nanosecond)
	}
	return d.String()
}

// figures summarise samples. last is NaN if there was no sample at the last time.
type figures struct{ mean, most, last, samples float64 }

func (s *sampled) figures() figures {
	f := figures{last: math.NaN()}
	for i, v := range s.Values {
		if f.last = float64(v); math.IsNaN(f.last) {
			continue
		}
		f.samples++
		f.mean += f.last
		f.most = max(f.most, float64(s.highest(i)))
	}
	f.mean /= max(f.samples, 1)
	return f
}

// highest returns the maximum of a sample.
func (s *sampled) highest(i int) float32 {
	if i < len(s.Max) {
		return s.Max[i]
	}
	return s.Values[i]
}

const graphWidth = 48

var graphLevels = []rune("▁▂▃▄▅▆▇█")

// graph draws the maxima of samples from span ago until now.
func (s *sampled) graph(times []float64, span time.Duration, most float64) string {
	heights := make([]float64, graphWidth)
	for i := range heights {
		heights[i] = math.NaN()
	}
	width := max(1, span.Seconds()) / graphWidth
	start := float64(time.Now().UnixMilli())/1e3 - span.Seconds()
	for i, at := range times {
		place := int((at - start) / width)
		if v := float64(s.highest(i)); !math.IsNaN(v) && place >= 0 {
			place = min(place, graphWidth-1)
			if !(heights[place] >= v) { // also NaN
				heights[place] = v
			}
		}
	}
	out := make([]rune, graphWidth)
	for i, h := range heights {
		if out[i] = ' '; !math.IsNaN(h) {
			out[i] = graphLevels[0]
			if most > 0 {
				out[i] = graphLevels[min(len(graphLevels)-1, int(h/most*float64(len(graphLevels))))]
			}
		}
	}
	return string(out)
}
