// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// TestHistoryTable draws samples: scaled to the maximum, empty where nothing was measured, names as text.
func TestHistoryTable(t *testing.T) {
	nan := float32(math.NaN())
	now := float64(time.Now().UnixMilli()) / 1e3
	var h sampledHistory
	lines := []v1alpha1.HistoryLine{{Step: 60, Omitted: 3, Series: []v1alpha1.Series{
		{Name: "kerb_dropped_packets_per_second", Module: "fw", Reason: "bad\x1b]0;title\x07\nreason"},
		{Name: "kerb_service_packets_per_second", Service: "gone"}, {Name: "kerb_problems"},
		{Name: "kerb_service_packets_per_second", Service: "idle"}}}}
	for i := range 48 { // one for each column, but for the third quarter
		if i < 24 || i >= 36 {
			first := nan
			if i == 0 {
				first = 7
			}
			lines = append(lines, v1alpha1.HistoryLine{Time: now - 48*60 + float64(i*60) + 30,
				Values: v1alpha1.Values{float32(i), nan, 0, first},
				Max:    v1alpha1.Values{float32(2 * i), nan, 0, first}})
		}
	}
	for _, l := range lines {
		if err := h.take(l, math.MaxInt32); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.take(v1alpha1.HistoryLine{Values: v1alpha1.Values{1}}, 10); err == nil {
		t.Error("a sample of other series is taken")
	}
	var out bytes.Buffer
	if err := (&app{output: "table"}).printHistory(&out, h, "fw", 48*time.Minute); err != nil {
		t.Fatal(err)
	}
	want := "|" + strings.Repeat("▁", 6) + strings.Repeat("▂", 6) + strings.Repeat("▃", 6) + strings.Repeat("▄", 6) +
		strings.Repeat(" ", 12)
	text := out.String()
	if !strings.Contains(text, want) || !strings.Contains(text, "▇██████|") || !strings.Contains(text, " 94 ") ||
		strings.Contains(text, "gone") || strings.ContainsAny(text, "\x1b\x07") || strings.Count(text, "\n") != 5 ||
		!strings.Contains(text, "|"+strings.Repeat("▁", 24)) || !strings.Contains(text, "3 series are not kept") {
		t.Errorf("%s", text)
	}
	if !regexp.MustCompile(`idle +kerb_service_packets_per_second +7 +7 +- `).MatchString(text) { // not the one of then
		t.Errorf("%s", text)
	}
	for i := range 5 { // the newest two are kept
		if err := h.take(v1alpha1.HistoryLine{Time: float64(i), Values: v1alpha1.Values{1, 2, 3, 4}}, 2); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSpan(t *testing.T) {
	for text, want := range map[string]time.Duration{"90s": 90 * time.Second, "7d": 7 * 24 * time.Hour,
		"30d": 30 * 24 * time.Hour,
		"":    0, "31d": 0, "0s": 0, "-1h": 0, "d": 0, "99999999999d": 0, "1x": 0} {
		if got, err := parseSpan(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
}
