// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

// topOptions are the options of kerb top.
type topOptions struct {
	table    *topTable
	sort     string // name of a column
	filter   string
	interval time.Duration
	count    int
}

func (a *app) topCommand() *cobra.Command {
	o := topOptions{table: topTables[0]}
	c := answers(&cobra.Command{
		Use:   "top [services|modules|drops]",
		Short: "Watch the traffic of services and modules, and drops",
		Long: "Shows packets and bytes per second of services, of modules by verdict, or drops by module and reason,\n" +
			"highest first, until interrupted. Directions are the service's: egress is from it, ingress is to it; packets of\n" +
			"services are counted by the kernel on their interfaces. Rows without any traffic so far are omitted.\n\n" +
			"On a terminal, keys select table, column and rows; ? lists them. Elsewhere, and with --count, it prints tables.",
		Example: "  kerb top\n  kerb top drops --filter fw\n" +
			"  kerb top modules --sort drop-packets --interval 5s --count 1 -o json",
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"services", "modules", "drops"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(args); err != nil {
				return &usageError{err}
			}
			if a.output == "table" && o.count == 0 && canDraw(cmd.OutOrStdout()) {
				return a.topScreen(cmd.Context(), os.Stdin, cmd.OutOrStdout().(*os.File), o)
			}
			return a.top(cmd.Context(), cmd.OutOrStdout(), o)
		},
	})
	c.Flags().DurationVar(&o.interval, "interval", time.Second, "time between two tables, whose figures are means over it")
	c.Flags().IntVar(&o.count, "count", 0, "stop after this many tables (0: never)")
	c.Flags().StringVar(&o.sort, "sort", "", "column to sort by, such as dropped-packets, ingress-bytes or module")
	c.Flags().StringVar(&o.filter, "filter", "", "only rows of which a name contains this")
	return c
}

func (o *topOptions) check(args []string) error {
	for _, t := range topTables {
		if slices.Contains(args, t.name) {
			o.table = t
		}
	}
	switch {
	case o.interval < time.Second:
		return fmt.Errorf("--interval %v: must be at least 1s", o.interval)
	case o.count < 0:
		return fmt.Errorf("--count %d: must not be less than 0", o.count)
	case o.sort != "" && o.table.column(o.sort) < 0:
		return fmt.Errorf("--sort %s: the columns of %s are %s", o.sort, o.table.name, strings.Join(o.table.ids(), ", "))
	}
	return nil
}

// topTable is one of the tables. Its first columns are names.
type topTable struct {
	name    string
	columns []topColumn
	busiest int // column that is the initial sort key, and that graphs show
}

// topColumn is a column with a name or a number.
type topColumn struct {
	id, title string
	of        func(v1alpha1.Series) string // returns the name, or
	adds      func(v1alpha1.Series) bool   // selects the series that add up to the number
	bytes     bool
	json      string
}

// topRow is a row of a table.
type topRow struct {
	names   []string
	figures []float64
	graph   []float64 // of the busiest column, oldest first; NaN where nothing was measured
}

func ofService(s v1alpha1.Series) string { return s.Service }
func ofModule(s v1alpha1.Series) string  { return s.Module }
func ofReason(s v1alpha1.Series) string  { return s.Reason }

// figure returns a column for the series with a name, and with direction and verdict unless they are empty. Its names
// combine these words: egressPacketsPerSecond in JSON, and egress-packets for --sort.
func figure(title, name, direction, verdict string) topColumn {
	full := name
	for _, of := range []string{"kerb_", "service_", "module_"} {
		full = strings.TrimPrefix(full, of)
	}
	full = strings.TrimPrefix(direction+verdict+"_"+full, "_")
	words := strings.Split(full, "_")
	for i, w := range words[1:] {
		words[i+1] = strings.ToUpper(w[:1]) + w[1:]
	}
	return topColumn{id: strings.ReplaceAll(strings.TrimSuffix(full, "_per_second"), "_", "-"), title: title,
		json: strings.Join(words, ""), bytes: strings.Contains(name, "bytes"),
		adds: func(s v1alpha1.Series) bool {
			return s.Name == name && (direction == "" || s.Direction == direction) && (verdict == "" || s.Verdict == verdict)
		}}
}

// topTables are the tables, in the order of the Tab key.
var topTables = []*topTable{
	{name: "services", busiest: 1, columns: []topColumn{
		{id: "service", title: "SERVICE", json: "service", of: ofService},
		figure("PACKETS/S", "kerb_service_packets_per_second", "", ""),
		figure("EGRESS", "kerb_service_packets_per_second", "egress", ""),
		figure("INGRESS", "kerb_service_packets_per_second", "ingress", ""),
		figure("EGRESS B/S", "kerb_service_bytes_per_second", "egress", ""),
		figure("INGRESS B/S", "kerb_service_bytes_per_second", "ingress", ""),
		figure("DROPPED", "kerb_service_dropped_packets_per_second", "", ""),
	}},
	{name: "modules", busiest: 1, columns: moduleColumns()},
	{name: "drops", busiest: 2, columns: []topColumn{
		{id: "module", title: "MODULE", json: "module", of: ofModule},
		{id: "reason", title: "REASON", json: "reason", of: ofReason},
		figure("DROPPED/S", "kerb_dropped_packets_per_second", "", ""),
	}},
}

func moduleColumns() []topColumn {
	out := []topColumn{{id: "module", title: "MODULE", json: "module", of: ofModule},
		figure("PACKETS/S", "kerb_module_packets_per_second", "", ""),
		figure("BYTES/S", "kerb_module_bytes_per_second", "", "")}
	for _, verdict := range kerbabi.Verdicts {
		out = append(out, figure(strings.ToUpper(verdict)+"/S", "kerb_module_packets_per_second", "", verdict))
	}
	return append(out, figure("MEMORY", "kerb_module_memory_bytes", "", ""))
}

func (t *topTable) column(id string) int {
	return slices.IndexFunc(t.columns, func(c topColumn) bool { return c.id == id })
}

func (t *topTable) ids() (ids []string) {
	for _, c := range t.columns {
		ids = append(ids, c.id)
	}
	return ids
}

// rows returns the rows, with means over the last over samples.
func (t *topTable) rows(h *sampledHistory, over int) []*topRow {
	byNames := map[string]*topRow{}
	var all []*topRow
	for _, s := range h.Series {
		var row *topRow
		for i, c := range t.columns {
			if c.of != nil || !c.adds(s.Series) {
				continue
			}
			if row = t.row(byNames, s.Series); row.figures == nil {
				row.figures, row.graph = make([]float64, len(t.columns)), make([]float64, len(h.Times))
				for j := range row.graph {
					row.graph[j] = math.NaN()
				}
				all = append(all, row)
			}
			row.figures[i] += meanOf(s.Values[max(0, len(s.Values)-over):])
			if i == t.busiest {
				addGraph(row.graph, s.Values)
			}
		}
	}
	return all
}

func (t *topTable) row(all map[string]*topRow, s v1alpha1.Series) *topRow {
	var names []string
	for _, c := range t.columns {
		if c.of != nil {
			names = append(names, c.of(s))
		}
	}
	key := strings.Join(names, "\x00")
	if all[key] == nil {
		all[key] = &topRow{names: names}
	}
	return all[key]
}

func meanOf(values v1alpha1.Values) float64 {
	sum, n := 0.0, 0.0
	for _, v := range values {
		if !math.IsNaN(float64(v)) {
			sum, n = sum+float64(v), n+1
		}
	}
	return sum / max(n, 1)
}

func addGraph(graph []float64, values v1alpha1.Values) {
	for i, v := range values {
		switch n := float64(v); {
		case math.IsNaN(n):
		case math.IsNaN(graph[i]):
			graph[i] = n
		default:
			graph[i] += n
		}
	}
}

// choose returns the rows with a name that contains the filter, sorted: names ascending, numbers descending, or the
// reverse.
func (t *topTable) choose(all []*topRow, filter string, by int, reverse bool) []*topRow {
	rows := slices.DeleteFunc(slices.Clone(all), func(r *topRow) bool {
		return !slices.ContainsFunc(r.names, func(name string) bool { return strings.Contains(name, filter) })
	})
	slices.SortStableFunc(rows, func(a, b *topRow) int {
		order := 0
		if t.columns[by].of != nil {
			order = cmp.Compare(a.names[by], b.names[by])
		} else {
			order = cmp.Compare(b.figures[by], a.figures[by])
		}
		if reverse {
			order = -order
		}
		return cmp.Or(order, slices.Compare(a.names, b.names))
	})
	return rows
}

// cells returns the texts of a row.
func (t *topTable) cells(r *topRow) (cells []string) {
	for i, c := range t.columns {
		switch {
		case c.of != nil:
			cells = append(cells, oneLine(r.names[i]))
		case c.bytes:
			cells = append(cells, pkgs.FormatBytes(int64(r.figures[i])))
		default:
			cells = append(cells, fmt.Sprintf("%.0f", r.figures[i]))
		}
	}
	return cells
}

func (t *topTable) object(r *topRow) map[string]any {
	o := map[string]any{}
	for i, c := range t.columns {
		if o[c.json] = r.figures[i]; c.of != nil {
			o[c.json] = r.names[i]
		}
	}
	return o
}

// errAgentEnded is the reason why the endless stream of samples has ended.
var errAgentEnded = errors.New("the agent has ended; start it again, or see its log")

// top prints a table at each interval until ctx ends, which is not an error.
func (a *app) top(ctx context.Context, w io.Writer, o topOptions) error {
	over := int(o.interval / time.Second)
	shown, since := 0, time.Now()
	sort := o.table.busiest
	if o.sort != "" {
		sort = o.table.column(o.sort)
	}
	var h sampledHistory
	enough := errors.New("enough")
	err := a.readLines(ctx, url.Values{"follow": {"true"}}, func(l v1alpha1.HistoryLine) error {
		// samples from before arrive immediately, and the first one has no rates
		if err := h.take(l, over); err != nil || l.Step > 0 || time.Since(since) < o.interval-time.Second/2 {
			return err
		}
		since = time.Now()
		rows := o.table.choose(o.table.rows(&h, over), o.filter, sort, false)
		if err := a.printTop(w, o.table, rows); err != nil {
			return err
		}
		if shown++; shown == o.count {
			return enough
		}
		return nil
	})
	switch {
	case errors.Is(err, enough):
		return nil
	case err == nil:
		err = errAgentEnded
	}
	return ignoreInterrupt(ctx, err)
}

func (a *app) printTop(w io.Writer, t *topTable, rows []*topRow) error {
	objects := []map[string]any{}
	for _, r := range rows {
		objects = append(objects, t.object(r))
	}
	return a.print(w, objects, func(w io.Writer) {
		var titles []any
		for _, c := range t.columns {
			titles = append(titles, c.title)
		}
		line(w, titles...)
		for _, r := range rows {
			var cells []any
			for _, cell := range t.cells(r) {
				cells = append(cells, cell)
			}
			line(w, cells...)
		}
	})
}
