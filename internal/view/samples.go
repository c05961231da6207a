// SPDX-License-Identifier: Apache-2.0

package view

import (
	"maps"
	"slices"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/deploy"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/samples"
)

// sampled caches readings of the last sample. Slow ones are repeated after 10 minutes, or if they may have grown.
type sampled struct {
	interfaces samples.Interfaces
	text       []byte // the source of these readings
	modules    map[string]moduleReadings
}

// moduleReadings are the cached readings of a module.
type moduleReadings struct {
	at      time.Time
	of      *deploy.Module // whose memory it is
	dropped uint64         // packets, when drops were read
	drops   []v1.Drop
	memory  int64
}

// Sample takes a sample. Only one goroutine may call it.
func (v *Views) Sample(out *samples.Readings) {
	out.Reset()
	out.AddAgent(v.Now.Recorder.Problems())
	dropped := map[string]uint64{}
	counts, err := v.Dataplane.Counts()
	if err != nil {
		v.Log.Warn("cannot read the counts of modules", "error", err)
	}
	for key, stats := range counts.Modules {
		dropped[key.Module] += stats.Verdicts[kerbabi.Drop].Packets
		if stats.Latency.Sum > 0 { // on an idle node, most modules have no measurements
			took := stats.Latency
			out.AddLatency(key.Module, string(key.Direction), took.Histogram())
		}
		for verdict, n := range stats.Verdicts {
			out.AddModule(key.Module, string(key.Direction), kerbabi.Verdict(verdict).String(), n.Packets, n.Bytes)
		}
	}
	if v.sampled.interfaces == nil {
		v.sampled.interfaces = samples.Interfaces{}
	}
	v.sampled.text = v.sampled.interfaces.Read(v.sampled.text)
	before := v.sampled.modules
	v.sampled.modules = map[string]moduleReadings{}
	v.Lock.Lock()
	defer v.Lock.Unlock()
	for _, name := range slices.Sorted(maps.Keys(v.Now.Modules)) {
		c := v.Now.Counters(name)
		if c == nil {
			continue
		}
		m := before[name]
		again := m.of != v.Now.Modules[name] || time.Since(m.at) > 10*time.Minute
		if again {
			m.at, m.of, m.memory = time.Now(), v.Now.Modules[name], c.Memory()
		}
		if again || m.dropped != dropped[name] {
			m.dropped, m.drops = dropped[name], v.Now.Drops(name)
		}
		v.sampled.modules[name] = m
		out.AddMemory(name, m.memory)
		out.AddDrops(name, m.drops)
		v.yield()
	}
	for name, state := range v.Now.Services {
		for _, l := range state.Links {
			if t := v.sampled.interfaces[l.Name]; t != nil {
				out.AddService(name, *t)
			}
		}
	}
}
