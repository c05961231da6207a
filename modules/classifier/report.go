// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/kerb-edge/kerb/sdk"
)

// counts are those of the data plane, and in user mode of the evaluator.
func (w *running) counts() (sum [counts]uint64, err error) {
	w.mu.Lock()
	sum = w.evaluator.counts
	w.mu.Unlock()
	for i := range countNames {
		n, err := sdk.Sum[uint64](w.live.Maps, mapCounts, uint32(i))
		if err != nil {
			return sum, err
		}
		sum[i] += n
	}
	return sum, nil
}

// stats leaves out what is zero.
func (w *running) stats() (map[string]uint64, error) {
	c, err := w.counts()
	out := map[string]uint64{}
	for i, name := range countNames {
		if c[i] > 0 {
			out[name] = c[i]
		}
	}
	return out, err
}

// SourceReport is what is known of a source.
type SourceReport struct {
	Location
	Known      string            `json:"known"` // for how long
	Idle       string            `json:"idle"`
	Version    uint32            `json:"version,omitempty"` // of the model of the last one
	Class      string            `json:"class,omitempty"`
	Score      float64           `json:"score"`
	Hits       uint32            `json:"hits"`
	Suspicious bool              `json:"suspicious"`
	Counts     map[string]uint64 `json:"counts"` // since it is known
}

func (w *running) sources(limit int) ([]SourceReport, error) {
	out, at, now := []SourceReport{}, w.places(), sdk.Monotonic()
	names := rplSums
	if w.config.Extractor == "flow" {
		names = flowSums
	}
	err := sdk.EachElement(w.live.Maps, mapRecords, batch, func(s source, r *record) bool {
		if int(s.Kind) != index(extractors, w.config.Extractor) { // of the config before
			return true
		}
		one := SourceReport{Location: at.of(s), Known: age(now, r.First), Idle: age(now, r.Last), Version: r.Version,
			Score: share(r.Score), Hits: r.Hits, Suspicious: r.Suspicious != 0, Counts: map[string]uint64{}}
		if one.Version != 0 {
			one.Class = w.words.class(r.Version, r.Class)
		}
		w.inUserMode(s, &one)
		for i, name := range names {
			one.Counts[name] = r.Sum[i]
		}
		out = append(out, one)
		return len(out) < limit
	})
	return out, err
}

// inUserMode adds what only the evaluator knows.
func (w *running) inUserMode(s source, to *SourceReport) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.evaluator.sources[s]
	if v == nil {
		return
	}
	to.Hits, to.Suspicious = v.hits, v.suspicious
	to.Version, to.Class, to.Score = v.decision.Version, w.words.class(v.decision.Version, v.decision.Class),
		share(v.decision.Score)
}

func age(now, at uint64) string {
	return time.Duration(now - min(now, at)).Round(time.Millisecond).String()
}

// Collect implements sdk.Collector.
func (w *running) Collect() ([]sdk.Sample, error) {
	c, err := w.counts()
	if err != nil {
		return nil, err
	}
	var out []sdk.Sample
	for i, name := range countNames {
		out = append(out, sdk.Sample{Name: metricOf(i), Help: metricHelp[metricOf(i)], Counter: true,
			Labels: map[string]string{"kind": name}, Value: float64(c[i])})
	}
	blown := 0.0
	if w.fuse.blown() {
		blown = 1
	}
	out = append(out, sdk.Sample{Name: "fuse_blown", Help: "1 when the fuse is blown: the model exceeded its limits, " +
		"and its verdicts have no effect.", Value: blown},
		sdk.Sample{Name: "blocked_sources", Help: "Sources with an action in effect.",
			Value: float64(atomic.LoadUint32(&w.fuse.Blocked))})
	for role, l := range w.models() {
		out = append(out, sdk.Sample{Name: "model_info", Help: "Models in use.", Value: 1,
			Labels: map[string]string{"role": role, "model": l.Name, "version": strconv.FormatUint(uint64(l.Version), 10),
				"kind": l.Kind}})
	}
	return out, nil
}

var metricHelp = map[string]string{
	"packets_total":     "Packets by outcome; one packet may count in several.",
	"evaluations_total": "Evaluations by result.",
	"agreement_total":   "Evaluations by verdict of the live and the shadow model.",
}

// metricOf sorts the counters into metrics.
func metricOf(count int) string {
	switch {
	case count >= countBothHarmless:
		return "agreement_total"
	case count >= countEvaluated && count <= countNoRoom:
		return "evaluations_total"
	}
	return "packets_total"
}
