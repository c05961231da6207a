// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/model"
)

// evaluator is what user mode knows alongside the data plane: the same as action.h keeps in records.
type evaluator struct {
	sources map[source]*sourceState
	counts  [counts]uint64

	number                   uint64 // of the window that what follows is of; as struct cls_fuse has it
	evaluated, sourcesBefore uint32
	held                     uint32 // blocked when it began

	keys   []source // buffers
	values []window
}

// sourceState is what the last evaluations said of a source.
type sourceState struct {
	hits       uint32
	suspicious bool
	decision   model.Decision
	window     uint64 // in which it was evaluated last, plus 1
}

func newEvaluator() evaluator { return evaluator{sources: map[source]*sourceState{}} }

// free forgets what was said of a source, so that it is evaluated again.
func (e *evaluator) free(s source) { delete(e.sources, s) }

// infer runs a model on the values of a window. Of one that is too large for the data plane's integers that is in
// floating point.
func (l *loaded) infer(values *[valuesMax]int32) model.Decision {
	if l.doc == nil {
		features := make([]int64, valuesMax)
		for i, v := range values {
			features[i] = int64(v)
		}
		return l.packed.Infer(features)
	}
	row := make([]float64, len(l.columns))
	for i, column := range l.columns {
		row[i] = float64(values[column])
	}
	class, score := l.doc.Infer(row)
	return model.Decision{Version: l.Version, Class: uint32(class), Score: int32(math.Round(score * model.ScoreOne))}
}

// against reports whether a decision is, as cls_decision_opposes does.
func (l *loaded) against(c *config, d model.Decision, suspicious bool) bool {
	if suspicious && d.Score >= c.clear() {
		return true
	}
	return l.harmless>>(d.Class&63)&1 == 0 && d.Score >= c.raise()
}

// evaluateAll evaluates the windows that wait.
func (w *running) evaluateAll() error {
	m, err := w.live.Maps.Get(mapWindows)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	e := &w.evaluator
	if e.keys == nil {
		e.keys, e.values = make([]source, windowBatch), make([]window, windowBatch)
	}
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookupAndDelete(&cursor, e.keys, e.values, nil)
		for i := range n {
			if err := w.evaluateSource(e.keys[i], &e.values[i]); err != nil {
				return err
			}
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read map %s: %w", mapWindows, err)
		}
	}
}

const windowBatch = 256

// evaluateSource evaluates a source by its window.
func (w *running) evaluateSource(s source, win *window) error {
	e, l := &w.evaluator, w.loaded[model.Live]
	if l == nil {
		e.counts[countNoModel]++
		return nil
	}
	e.counts[countEvaluated]++
	d := l.infer(&win.Values)
	v := w.stateOf(s)
	if err := w.enter(s, v, win.Time/w.config.epoch()); err != nil {
		return err
	}
	against := l.against(w.config, d, v.suspicious)
	if against {
		e.counts[countPositive]++
	}
	w.compare(&win.Values, d, against)
	return w.conclude(s, v, win, d, against)
}

// epoch is the length of windows in ns; where they have no end, of the fuse's.
func (c *config) epoch() uint64 {
	if c.Window == 0 {
		return uint64(time.Second)
	}
	return uint64(c.Window)
}

// stateOf makes room for a source that is new: at most as many are known as in the data plane.
func (w *running) stateOf(s source) *sourceState {
	v := w.evaluator.sources[s]
	if v != nil {
		return v
	}
	if len(w.evaluator.sources) >= int(w.config.Sources) {
		for other, of := range w.evaluator.sources { // any that nothing is held against
			if !of.suspicious {
				delete(w.evaluator.sources, other)
				break
			}
		}
	}
	v = &sourceState{}
	w.evaluator.sources[s] = v
	return v
}

// enter counts the sources of a window: those that were blocked when it began are counted already.
func (w *running) enter(s source, v *sourceState, number uint64) error {
	e := &w.evaluator
	if number > e.number {
		e.sourcesBefore = 0
		if number == e.number+1 {
			e.sourcesBefore = w.sourcesOfWindow()
		}
		e.number, e.evaluated, e.held = number, 0, atomic.LoadUint32(&w.fuse.Blocked)
	}
	if v.window == e.number+1 {
		return nil
	}
	v.window = e.number + 1
	held, err := w.isHeld(s)
	if !held {
		e.evaluated++
	}
	return err
}

// isHeld is cls_source_is_held: it reports whether a source was blocked before the window began.
func (w *running) isHeld(s source) (bool, error) {
	if w.evaluator.held == 0 {
		return false, nil
	}
	m, err := w.live.Maps.Get(mapBlocks)
	if err != nil {
		return false, err
	}
	var b block
	return m.Lookup(s, &b) == nil && b.Since/w.config.epoch() < w.evaluator.number, nil
}

// sourcesOfWindow is cls_source_count.
func (w *running) sourcesOfWindow() uint32 { return w.evaluator.evaluated + w.evaluator.held }

// compare asks the shadow model.
func (w *running) compare(values *[valuesMax]int32, live model.Decision, against bool) {
	l, e := w.loaded[model.Shadow], &w.evaluator
	if l == nil {
		return
	}
	d := l.infer(values)
	switch other := l.against(w.config, d, false); {
	case !against && !other:
		e.counts[countBothHarmless]++
	case against && other:
		e.counts[countBothPositive]++
	case against:
		e.counts[countOnlyLive]++
	default:
		e.counts[countOnlyShadow]++
	}
	if d.Class == live.Class {
		e.counts[countSameClass]++
	}
}

// conclude is cls_verdict_update: hysteresis, then what follows from it.
func (w *running) conclude(s source, v *sourceState, win *window, d model.Decision, against bool) error {
	c, was := w.config, v.suspicious
	v.hits <<= 1
	if against {
		v.hits |= 1
	}
	recent := v.hits & (math.MaxUint32 >> (32 - uint(c.Hysteresis.Of)))
	v.suspicious = against && bits.OnesCount32(recent) >= int(c.Hysteresis.Hits) || was && recent != 0
	v.decision = d
	e := event{Time: win.Time, Source: s, Version: d.Version, Class: d.Class, Score: d.Score, Hits: v.hits,
		Values: win.Values}
	isNew := false
	if v.suspicious && against {
		var err error
		if e.Action, isNew, err = w.act(&e); err != nil {
			return err
		}
	}
	switch {
	case v.suspicious && (!was || isNew):
		e.Kind = kindSuspicious
	case was && !v.suspicious: // its block lasts until its time: action.for is a minimum
		e.Kind = kindCleared
	}
	w.publish(&e)
	return nil
}

// act is cls_action_apply: it puts a source under the action, or keeps it there.
func (w *running) act(e *event) (done uint8, isNew bool, err error) {
	c, none := w.config, uint8(index(actions, "event"))
	action := uint8(index(actions, c.Action.Do))
	if action == none {
		return none, false, nil
	}
	if c.allows(e.Source) {
		e.Allowed = 1
		return none, false, nil
	}
	if w.fuse.blown() {
		return none, false, nil
	}
	if c.Mode != "watch" {
		done = action
	}
	now := sdk.Monotonic()
	m, err := w.live.Maps.Get(mapBlocks)
	if err != nil {
		return none, false, err
	}
	b := block{Since: now, Version: e.Version, Class: e.Class, Score: e.Score, Action: action}
	if c.Action.For > 0 {
		b.Until = now + uint64(c.Action.For)
	}
	var old block
	if err := m.Lookup(e.Source, &old); err == nil {
		if old.Until == 0 {
			return done, false, nil
		}
		b.Since, b.Packets, b.Dropped, b.Due = old.Since, old.Packets, old.Dropped, old.Due
		return done, false, m.Update(e.Source, b, ebpf.UpdateExist)
	}
	if cause := w.fuseReason(); cause != 0 {
		if w.fuse.blow(cause) {
			blown := *e
			blown.Kind, blown.Cause = kindFuse, uint8(cause)
			w.publish(&blown)
		}
		return none, false, nil
	}
	if err := m.Update(e.Source, b, ebpf.UpdateNoExist); err != nil {
		return none, false, err
	}
	atomic.AddUint32(&w.fuse.Blocked, 1)
	return done, true, nil
}

// fuseReason is cls_fuse_check: the reason why the model must not block another source, 0 if it may.
func (w *running) fuseReason() uint32 {
	f, n := &w.config.Fuse, atomic.LoadUint32(&w.fuse.Blocked)+1
	if n > f.Sources {
		return causeSources
	}
	if f.SourceShare >= 100 || n <= f.Least {
		return 0
	}
	if n*100 > max(w.sourcesOfWindow(), w.evaluator.sourcesBefore)*uint32(f.SourceShare) {
		return causeShare
	}
	return 0
}

// publish passes an event on if the config wants such ones.
func (w *running) publish(e *event) {
	if e.Kind == kindEvaluated && (w.config.Events == "changes" || w.config.Events == "positives" && e.Hits&1 == 0) {
		return
	}
	w.stream.Send(w.describe(e))
}
