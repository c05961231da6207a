// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/config"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/samples"
)

// sampler takes samples. The zero value takes none.
type sampler struct {
	store *samples.Store // nil: history is off, or could not be opened
	err   error          // why not
	live  samples.Live
	wake  chan struct{}
}

// openSamples opens the files, if the history is on. Without them the agent works.
func (a *Agent) openSamples(cfg config.Config) {
	if a.samples.wake = make(chan struct{}, 1); cfg.History == nil {
		return
	}
	if a.samples.store, a.samples.err = samples.Open(cfg.Paths.Samples()); a.samples.err != nil {
		a.log.Warn("the history is not kept", "error", a.samples.err)
	}
}

// sample takes samples until ctx ends: for the files each 10 s, and each second while clients follow.
func (a *Agent) sample(ctx context.Context) {
	var filed, live samples.Rates
	all := readings{interfaces: samples.Interfaces{}}
	due, failing := time.Now().Add(samples.Period), false
	timer := time.NewTimer(0)
	defer timer.Stop()
	a.read(&all)
	filed.Add(time.Now(), all.All())
	for {
		wait := time.Until(due)
		followed := a.samples.live.Wanted()
		if followed {
			wait = min(wait, samples.Second)
		} else {
			live = samples.Rates{}
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-a.samples.wake:
			continue
		case <-timer.C:
		}
		now := time.Now()
		a.read(&all)
		if followed {
			live.Add(now, all.All())
			a.samples.live.Add(now, all.All())
		}
		if now.Before(due) {
			continue
		}
		due = now.Add(samples.Period)
		filed.Add(now, all.All())
		a.samples.store.Omit(all.Omitted())
		err := a.samples.store.Add(now, all.All())
		if err != nil && !failing {
			a.log.Warn("samples are not kept", "error", err)
		}
		failing = err != nil
	}
}

// readings are what was read last. What takes long is read again after 10 minutes, or if there may be more of it.
type readings struct {
	samples.Readings
	interfaces samples.Interfaces
	modules    map[string]moduleReadings
}

// moduleReadings are those of a module.
type moduleReadings struct {
	at      time.Time
	dropped uint64 // packets, when drops were read
	drops   []v1.Drop
	memory  int64
}

// read reads what is sampled.
func (a *Agent) read(out *readings) {
	out.Reset()
	out.AddAgent(a.now.Recorder.Problems())
	dropped := map[string]uint64{}
	counts, err := a.dp.Counts()
	if err != nil {
		a.log.Warn("cannot read the counts of modules", "error", err)
	}
	for key, stats := range counts.Modules {
		dropped[key.Module] += stats.Verdicts[kerbabi.Drop].Packets
		for verdict, n := range stats.Verdicts {
			out.AddModule(key.Module, string(key.Direction), kerbabi.Verdict(verdict).String(), n.Packets, n.Bytes)
		}
	}
	out.interfaces.Read()
	before := out.modules
	out.modules = map[string]moduleReadings{}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(a.now.Modules)) {
		c := a.now.Counters(name)
		if c == nil {
			continue
		}
		m := before[name]
		if m.dropped != dropped[name] || time.Since(m.at) > 10*time.Minute {
			m = moduleReadings{time.Now(), dropped[name], a.now.Drops(name), c.Memory()}
		}
		out.modules[name] = m
		out.AddMemory(name, m.memory)
		out.AddDrops(name, m.drops)
		a.mu.Unlock() // for those that wait
		runtime.Gosched()
		a.mu.Lock()
	}
	for name, state := range a.now.Services {
		for _, l := range state.Links {
			if t := out.interfaces[l.Name]; t != nil {
				out.AddService(name, *t)
			}
		}
	}
}

// History passes on samples.
func (a *Agent) History(ctx context.Context, r v1.HistoryRequest, tell func(v1.HistoryLine) error) error {
	switch {
	case a.samples.err != nil:
		return &apierrors.Conflict{Reason: "the history cannot be kept: " + a.samples.err.Error()}
	case a.samples.store == nil:
		return &apierrors.Conflict{Reason: fmt.Sprintf("the history is off: add %q to the configuration of the agent (see "+
			"kerb agent --help) and restart it", "history: {}")}
	}
	want := func(s v1.Series) bool { return r.Name == "" || s.Service == r.Name || s.Module == r.Name }
	if !r.Follow {
		return a.samples.store.Read(time.Duration(r.Since)*time.Second, want, tell)
	}
	first, leave := a.samples.live.Join()
	defer leave()
	if first {
		poke(a.samples.wake)
	}
	return a.samples.live.Follow(ctx, want, tell)
}
