// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sort"
	"time"

	"github.com/spf13/cobra"

	"github.com/kerb-edge/kerb/internal/promtext"
)

func (a *app) topCommand() *cobra.Command {
	var interval time.Duration
	var count int
	c := answers(&cobra.Command{
		Use:   "top",
		Short: "Watch the traffic of the services",
		Long: "Shows packets and bytes per second of every service that a counter module sees, busiest first, until " +
			"interrupted.\n" +
			"Directions are the service's: out is from it, in is to it.",
		Example: "  kerb top\n  kerb top --interval 5s --count 1",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval <= 0 {
				return &usageError{fmt.Errorf("interval %v: must be more than 0", interval)}
			}
			if count < 0 {
				return &usageError{fmt.Errorf("--count %d: must not be less than 0", count)}
			}
			return a.top(cmd.Context(), cmd.OutOrStdout(), interval, count)
		},
	})
	c.Flags().DurationVar(&interval, "interval", time.Second, "time between two measurements")
	c.Flags().IntVar(&count, "count", 0, "stop after this many tables (0: never)")
	return c
}

// traffic of a service: packets or bytes, or either per second.
type traffic struct {
	Service    string  `json:"service"`
	PacketsOut float64 `json:"packetsOutPerSecond"`
	PacketsIn  float64 `json:"packetsInPerSecond"`
	BytesOut   float64 `json:"bytesOutPerSecond"`
	BytesIn    float64 `json:"bytesInPerSecond"`
}

// top prints until ctx ends, which is how it is meant to end.
func (a *app) top(ctx context.Context, w io.Writer, interval time.Duration, count int) error {
	before, err := a.totals(ctx)
	if err != nil {
		return err
	}
	since := time.Now()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for shown := 0; count == 0 || shown < count; shown++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := a.totals(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if err := a.printTop(w, rates(before, now, time.Since(since))); err != nil {
			return err
		}
		before, since = now, time.Now()
	}
	return nil
}

func (a *app) printTop(w io.Writer, all []traffic) error {
	if isTerminal(w) && a.output == "table" {
		fmt.Fprint(w, "\x1b[H\x1b[2J")
	}
	return a.print(w, all, func(w io.Writer) {
		line(w, "SERVICE", "PACKETS/S OUT", "PACKETS/S IN", "BYTES/S OUT", "BYTES/S IN")
		for _, t := range all {
			line(w, t.Service, rounded(t.PacketsOut), rounded(t.PacketsIn), rounded(t.BytesOut), rounded(t.BytesIn))
		}
	})
}

func rounded(v float64) string { return fmt.Sprintf("%.0f", v) }

// totals reads the counter modules' metrics.
func (a *app) totals(ctx context.Context) (map[string]traffic, error) {
	data, err := a.call(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	return trafficIn(data)
}

// trafficIn adds up the series of counter modules in the agent's metrics.
func trafficIn(data []byte) (map[string]traffic, error) {
	samples, err := promtext.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("the agent's metrics: %w", err)
	}
	counted := false
	totals := map[string]traffic{}
	for _, m := range samples {
		switch m.Name {
		case "kerb_counter_overflow_packets_total": // each counter has it, also before the first packet
			counted = true
		case "kerb_counter_packets_total":
			addTo(totals, m, func(t *traffic) (*float64, *float64) { return &t.PacketsOut, &t.PacketsIn })
		case "kerb_counter_bytes_total":
			addTo(totals, m, func(t *traffic) (*float64, *float64) { return &t.BytesOut, &t.BytesIn })
		}
	}
	if !counted {
		return nil, errors.New("no module counts packets: deploy the package counter on the services that you want to watch")
	}
	return totals, nil
}

func addTo(totals map[string]traffic, m promtext.Sample, fields func(*traffic) (out, in *float64)) {
	name := cmp.Or(m.Labels["service"], m.Labels["interface"]) // without a service it is one of the node
	t := totals[name]
	t.Service = name
	out, in := fields(&t)
	if m.Labels["direction"] == "egress" {
		*out += m.Value
	} else {
		*in += m.Value
	}
	totals[name] = t
}

// rates are the differences per second, busiest first. What has restarted counting is left out once.
func rates(before, now map[string]traffic, elapsed time.Duration) []traffic {
	all := []traffic{}
	for name, n := range now {
		b, ok := before[name]
		if !ok || n.PacketsOut < b.PacketsOut || n.PacketsIn < b.PacketsIn {
			continue
		}
		s := elapsed.Seconds()
		all = append(all, traffic{
			name, (n.PacketsOut - b.PacketsOut) / s, (n.PacketsIn - b.PacketsIn) / s, (n.BytesOut - b.BytesOut) / s,
			(n.BytesIn - b.BytesIn) / s,
		})
	}
	sort.Slice(all, func(i, j int) bool {
		x, y := &all[i], &all[j]
		return cmp.Or(cmp.Compare(y.PacketsOut+y.PacketsIn, x.PacketsOut+x.PacketsIn), cmp.Compare(x.Service, y.Service)) < 0
	})
	return all
}
