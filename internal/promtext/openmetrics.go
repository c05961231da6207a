// SPDX-License-Identifier: Apache-2.0

package promtext

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"sort"
	"strconv"
)

// Timed is a gauge at several times, which rise.
type Timed struct {
	Name   string
	Labels []string  // pairs of name and value
	Times  []float64 // Unix, in seconds
	Values []float32 // of NaN there is no sample
}

// WriteOpenMetrics writes gauges with their times in the format OpenMetrics 1.0, which promtool makes blocks of.
func WriteOpenMetrics(w io.Writer, all []Timed) error {
	sort.SliceStable(all, func(i, j int) bool { return all[i].Name < all[j].Name })
	out := bufio.NewWriter(w)
	for i, t := range all {
		labels, err := labelText(t.Labels)
		if err != nil || !validName.MatchString(t.Name) {
			return fmt.Errorf("metric %q: %w", t.Name, err)
		}
		if i == 0 || all[i-1].Name != t.Name {
			fmt.Fprintf(out, "# TYPE %s gauge\n", t.Name)
		}
		for i, v := range t.Values {
			if !math.IsNaN(float64(v)) {
				fmt.Fprintf(out, "%s{%s} %s %s\n", t.Name, labels, strconv.FormatFloat(float64(v), 'g', -1, 32),
					strconv.FormatFloat(t.Times[i], 'f', 3, 64))
			}
		}
	}
	fmt.Fprintln(out, "# EOF")
	return out.Flush()
}
