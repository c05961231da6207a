// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/client"
	"github.com/kerb-edge/kerb/integrations/kubernetes/api"
	"github.com/kerb-edge/kerb/integrations/kubernetes/names"
	"github.com/kerb-edge/kerb/internal/atomicfile"
)

// When a node rolls back a new version.
const (
	maxExcess     = 10 // excess drops that are tolerated: fewer may be chance
	maxBadSamples = 3  // consecutive samples in which a condition is bad that was not bad before
	sampleTime    = time.Hour
)

// trial is the new version of a ClusterModule on this node. It is created before the agent gets the version. Trials are
// persisted: neither a restart nor the loss of the API server retries a version that the node has rolled back.
type trial struct {
	Version string       `json:"version"`           // of the ClusterModule
	Share   float64      `json:"share"`             // fraction of packets that the module dropped before the new version
	Bad     []string     `json:"bad,omitempty"`     // types of conditions that were bad before
	Failure string       `json:"failure,omitempty"` // why the node rolled back
	limits               // at the time of the rollback
	Cost    []v1.Latency `json:"cost,omitempty"` // of the previous version
}

// limits are the limits in spec.rollout.
type limits struct {
	Drops   *int `json:"limit,omitempty"`
	Cost    *int `json:"costLimit,omitempty"`
	Unready *int `json:"unreadyLimit,omitempty"`
}

func limitsOf(r *api.Rollout) limits { return limits{r.MaxDrops, r.MaxCost, r.MaxUnready} }

// updated reports whether this node runs or may start the new version of m. While the rollout is paused or halted, no
// further node starts it. In waves, a node has to check the version first.
func (s *state) updated(m api.Module) bool {
	return m.Updated(s.node) && (s.trials[m.Metadata.Name].Version == m.Version() ||
		!m.Holds() && (m.Spec.Rollout.ByHand() || s.checks[m.Metadata.Name].passed(m)))
}

// failed reports whether the node has rolled back the new version of m. If the limits have changed since, it retries.
func (t trial) failed(m api.Module) bool {
	return t.Failure != "" && t.Version == m.Version() && reflect.DeepEqual(t.limits, limitsOf(m.Spec.Rollout))
}

// guard compares new versions with the module's behaviour before them. It works without the API server.
type guard struct {
	clock   clock
	file    string
	windows map[string]window
	counts  map[string]*trialState // by names of modules with a trial
}

// traffic has the counters of a module.
type traffic struct{ packets, drops uint64 }

// window has samples of the counters, the older one to two hours old. It is zero if this process has not run for that
// long.
type window struct {
	older, newer traffic
	rotated      time.Time
}

// trialState has the observations since a trial started, or since this process started.
type trialState struct {
	version    string
	last       traffic
	sum        traffic
	excess     float64 // drops above the limit; unused allowance does not accumulate
	badSamples int

	pods           map[string]string // names, by UID, of pods that were Ready before; nil after the soak time
	soakEnd        time.Time         // end of the soak time
	unreadySamples int               // consecutive samples with more than maxUnready pods not Ready
}

const rollbackRemedy = "; this node runs the previous version again: undo the rollout, or write another version"

const rolloutsFile = "rollouts.json"

// newGuard loads the trials from disk into s. If that fails, it returns a usable guard together with the error.
func newGuard(dir string, s *state) (*guard, error) {
	g := &guard{clock: s.clock, file: filepath.Join(dir, rolloutsFile), windows: map[string]window{},
		counts: map[string]*trialState{}}
	text, err := os.ReadFile(g.file)
	if errors.Is(err, fs.ErrNotExist) {
		return g, nil
	}
	var trials map[string]trial
	if err == nil {
		err = json.Unmarshal(text, &trials)
	}
	if err == nil && trials != nil {
		s.setTrials(trials, 0)
	}
	return g, err
}

// setTrials replaces the trials; bits are the resources that change with them.
func (s *state) setTrials(trials map[string]trial, bits int) {
	s.update(bits, func() bool { s.trials = trials; return true })
}

// trialsOf returns the trials of the modules whose new version this node gets.
func (s *state) trialsOf(updated []api.Module) map[string]trial {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]trial{}
	for _, m := range updated {
		if t, ok := s.trials[m.Metadata.Name]; ok && t.Version == m.Version() {
			out[m.Metadata.Name] = t
		}
	}
	return out
}

// rolloutReport is the node's report about rollouts.
type rolloutReport struct {
	begun, checked []api.NodeVersion
	failed         []api.ModuleReport
}

// rollouts returns the new versions that this node runs or has checked, and reports about those that it rolled back or
// could not run.
func (s *state) rollouts() (out rolloutReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fail := func(m api.Module, reason, message string) {
		out.failed = append(out.failed, api.ModuleReport{Name: m.Metadata.Name, Generation: m.Metadata.Generation,
			Reason: reason, Message: message})
	}
	for _, name := range slices.Sorted(maps.Keys(s.modules)) {
		m := s.modules[name]
		if m.Spec.Rollout == nil || m.Metadata.Namespace != "" {
			continue
		}
		t, c, version := s.trials[name], s.checks[name], m.Version()
		switch begun := s.updated(m) && t.Version == version; {
		case begun && t.failed(m):
			fail(m, api.RolledBack, t.Failure)
		case begun:
			out.begun = append(out.begun, api.NodeVersion{Name: name, Version: version})
		case c.matches(m) && c.Failure != "":
			fail(m, api.CheckFailed, c.Failure)
		case c.matches(m) && c.Pending != "": // the controller does not count it as a result
			fail(m, api.PackageUnavailable, c.Pending)
		case c.passed(m):
			out.checked = append(out.checked, api.NodeVersion{Name: name, Version: version})
		}
	}
	return out
}

// beginTrials records the behaviour of modules before their new versions, and removes trials that have ended.
func (s *syncer) beginTrials(ctx context.Context, v view) error {
	if s.guard == nil {
		return nil
	}
	trials := s.state.trialsOf(v.updated)
	for _, m := range v.updated {
		name := m.Metadata.Name
		if t, ok := trials[name]; ok {
			if !t.failed(m) {
				t.Failure, t.limits = "", limits{}
			}
			trials[name] = t
			continue
		}
		now, err := s.agent.module(ctx, name)
		if err != nil {
			return err
		}
		t, c := trial{Version: m.Version()}, &trialState{version: m.Version()}
		if now != nil {
			t.Share, t.Bad = s.guard.windows[name].share(trafficOf(*now)), badConditions(*now)
			t.Cost, c.last = costOf(*now), trafficOf(*now)
		}
		s.recordReady(ctx, m, v, c)
		s.guard.counts[name] = c
		trials[name] = t
	}
	s.state.mu.Lock()
	same := reflect.DeepEqual(trials, s.state.trials)
	s.state.mu.Unlock()
	if !same {
		s.saveTrials(trials, 0)
	}
	return nil
}

// saveTrials persists the trials before they take effect. They take effect even if the write fails: a full disk must
// not prevent a rollback.
func (s *syncer) saveTrials(trials map[string]trial, bits int) {
	text, err := json.Marshal(trials)
	if err == nil {
		err = atomicfile.Write(s.guard.file, text, 0o600)
	}
	if err != nil {
		s.log.Warn("the state of rollouts is not written: a restart may retry a version that this node has rolled back",
			"error", err)
	}
	s.state.setTrials(trials, bits)
}

// evaluateTrials compares running new versions with the behaviour before them, and rolls back failed ones. watched
// reports whether any trial is still running.
func (s *syncer) evaluateTrials(ctx context.Context, v view) (watched bool, err error) {
	if s.guard == nil {
		return false, nil
	}
	trials, back, soaks := s.state.trialsOf(v.updated), false, false
	for _, m := range v.updated {
		name := m.Metadata.Name
		t, ok := trials[name]
		refused := func(r api.ModuleReport) bool { return r.Name == name }
		if !ok || t.Failure != "" || slices.ContainsFunc(s.refused, refused) {
			continue
		}
		watched = true
		now, err := s.agent.module(ctx, name)
		if err != nil {
			return false, err
		}
		if now == nil {
			continue
		}
		if t.Failure = cmp.Or(s.guard.rollbackReason(m, t, *now), s.unready(m)); t.Failure == "" {
			soaks = soaks || s.guard.counts[name].soaking(s.state.clock.now())
			continue
		}
		s.log.Warn("this node rolls back to the previous version", "module", name, "error", t.Failure)
		t.limits = limitsOf(m.Spec.Rollout)
		delete(s.guard.counts, name)
		trials[name], back = t, true
	}
	s.ready.setNeeded(soaks)
	if back {
		s.saveTrials(trials, ofClusterModules) // the next round follows immediately, and applies the previous versions
	}
	return watched, nil
}

// rollbackReason returns why the node has to roll back, or "" if it need not.
func (g *guard) rollbackReason(m api.Module, t trial, now v1.Module) string {
	name, is := m.Metadata.Name, trafficOf(now)
	c := g.counts[name]
	if c == nil || c.version != t.Version {
		c = &trialState{version: t.Version, last: is}
		g.counts[name] = c
	}
	packets, drops := counterDelta(c.last.packets, is.packets), counterDelta(c.last.drops, is.drops)
	c.last = is
	c.sum.packets, c.sum.drops = c.sum.packets+packets, c.sum.drops+drops
	if limit := m.Spec.Rollout.MaxDrops; limit != nil {
		c.excess = max(0, c.excess+float64(drops)-float64(packets)*(t.Share+float64(*limit)/1000))
		if c.excess >= maxExcess {
			g.windows[name] = window{older: is, newer: is, rotated: g.clock.now()} // do not measure another attempt against it
			return fmt.Sprintf("the new version dropped %d of %d packets; before, the module dropped %.1f of 1,000, and "+
				"spec.rollout.maxDrops allows %d more%s, or raise maxDrops", c.sum.drops, c.sum.packets, 1000*t.Share, *limit,
				rollbackRemedy)
		}
	}
	if text := excessCost(m.Spec.Rollout, t.Cost, costOf(now)); text != "" {
		return text + rollbackRemedy + ", or raise maxCost"
	}
	unwell := slices.DeleteFunc(badConditions(now), func(kind string) bool { return slices.Contains(t.Bad, kind) })
	if len(unwell) == 0 {
		c.badSamples = 0
		return ""
	}
	if c.badSamples++; c.badSamples < maxBadSamples {
		return ""
	}
	for _, of := range now.Status.Conditions {
		if of.Type == unwell[0] {
			return fmt.Sprintf("the new version has %s=%s (%s: %s)%s", of.Type, of.Status, of.Reason, of.Message, rollbackRemedy)
		}
	}
	return ""
}

// sample records the counters of modules, as the baseline for later versions.
func (g *guard) sample(all []v1.Module) {
	if g == nil {
		return
	}
	now, next := g.clock.now(), map[string]window{}
	for _, m := range all {
		if m.Metadata.Owner != names.Owner {
			continue
		}
		w, known := g.windows[m.Metadata.Name]
		is := trafficOf(m)
		if !known || is.packets < w.newer.packets { // it was attached again, or its counters were reset
			w = window{newer: is, rotated: now}
		} else if now.Sub(w.rotated) >= sampleTime {
			w = window{older: w.newer, newer: is, rotated: now}
		}
		next[m.Metadata.Name] = w
	}
	g.windows = next
}

// share returns the fraction of packets that the module has dropped since the older sample; 0 if there were no packets.
func (w window) share(now traffic) float64 {
	packets := counterDelta(w.older.packets, now.packets)
	if packets == 0 {
		return 0
	}
	return float64(counterDelta(w.older.drops, now.drops)) / float64(packets)
}

// counterDelta returns the increase of a counter, or 0 if the counter was reset.
func counterDelta(before, now uint64) uint64 {
	if now < before {
		return 0
	}
	return now - before
}

func trafficOf(m v1.Module) (out traffic) {
	if m.Status == nil {
		return out
	}
	for _, c := range m.Status.Counts {
		out.packets += c.Packets
		for _, of := range c.Verdicts {
			if of.Verdict == "drop" {
				out.drops += of.Packets
			}
		}
	}
	return out
}

// badConditions returns the types of the conditions that indicate a failure. A starting control plane, and a module
// without a pod to attach to, are not failures.
func badConditions(m v1.Module) (out []string) {
	if m.Status == nil {
		return nil
	}
	for _, c := range m.Status.Conditions {
		switch {
		case c.Status != "False":
		case c.Type == "Ready" && c.Reason == "ModuleFailed", c.Type == "ControlPlane" && c.Reason != "Starting",
			c.Type == "ValidVerdicts":
			out = append(out, c.Type)
		}
	}
	return out
}

// module returns a module of the agent, or nil if there is none of that name.
func (a agent) module(ctx context.Context, name string) (*v1.Module, error) {
	var m v1.Module
	err := a.call(ctx, http.MethodGet, "/v1/modules/"+name, nil, &m)
	var status *client.StatusError
	switch {
	case err == nil:
		return &m, nil
	case errors.As(err, &status) && status.Status == http.StatusNotFound:
		return nil, nil
	}
	return nil, err
}
