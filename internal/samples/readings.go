// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"bytes"
	"hash/maphash"
	"os"
	"slices"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/promtext"
	"github.com/kerb-edge/kerb/sdk"
)

// Readings are the figures of one sample. Names are those of the metrics; the rate of one with the suffix _total has
// _per_second instead. The zero value is ready after Reset.
type Readings struct {
	all     []Reading
	at      map[uint64]int
	before  map[uint64]int // at of the sample before
	fresh   int            // of all, those that were not in the sample before
	omitted int
	timed   struct{ now, before, fresh int } // modules and directions with times
}

// maxReadings is how many series one sample reads: each takes memory, whether it gets a slot or not.
const maxReadings = 1024

// seed is of the keys of series, of which two of the same are not expected in the life of the universe.
var seed = maphash.MakeSeed()

// Reset makes them empty. What they take is used again: garbage costs the agent more than all else of a sample.
func (r *Readings) Reset() {
	clear(r.all)
	r.all, r.fresh, r.omitted = r.all[:0], 0, 0
	r.timed.now, r.timed.before, r.timed.fresh = 0, r.timed.now, 0
	r.at, r.before = r.before, r.at
	if clear(r.at); r.at == nil {
		r.at = map[uint64]int{}
	}
}

// Omitted is how many readings were left out.
func (r *Readings) Omitted() int { return r.omitted }

// All returns the readings. Several of one series are one.
func (r *Readings) All() []Reading { return r.all }

func (r *Readings) add(n Reading) {
	n.key = maphash.Comparable(seed, n.Series)
	if i, ok := r.at[n.key]; ok {
		r.all[i].Value += n.Value
		r.all[i].Quantile = n.Quantile
		return
	}
	if _, known := r.before[n.key]; !known { // those of the sample before come first, also in another order
		if len(r.before)+r.fresh >= maxReadings {
			r.omitted++
			return
		}
		r.fresh++
	}
	r.at[n.key] = len(r.all)
	if len(r.all) == cap(r.all) { // append would make it larger than it can become
		r.all = append(make([]Reading, 0, max(64, min(2*len(r.all), maxReadings))), r.all...)
	}
	r.all = append(r.all, n)
}

func (r *Readings) gauge(name string, series v1.Series, value float64) {
	series.Name = name
	r.add(Reading{Series: series, Value: value})
}

func (r *Readings) count(name string, series v1.Series, n float64, fromZero bool) {
	series.Name = name
	r.add(Reading{Series: series, Value: n, Counter: true, FromZero: fromZero})
}

// AddAgent adds what this process uses, and the number of problems.
func (r *Readings) AddAgent(problems int) {
	r.gauge("kerb_problems", v1.Series{}, float64(problems))
	if cpu, _, resident, err := promtext.Usage(); err == nil {
		r.gauge("process_resident_memory_bytes", v1.Series{}, resident)
		r.count("process_cpu_seconds_per_second", v1.Series{}, cpu, false)
	}
}

// AddModule adds packets that a module has seen.
func (r *Readings) AddModule(module, direction, verdict string, packets, length uint64) {
	of := v1.Series{Module: module, Direction: direction, Verdict: verdict}
	r.count("kerb_module_packets_per_second", of, float64(packets), false)
	r.count("kerb_module_bytes_per_second", of, float64(length), false)
}

// maxTimed is how many modules and directions can have times. Three samples of them are in memory: this one, and those
// before it of the files and of clients that follow.
const maxTimed = 128

// AddLatency adds how long packets took that a module has seen, in ns.
func (r *Readings) AddLatency(module, direction string, took sdk.Histogram) {
	of := func(name string) v1.Series { return v1.Series{Name: name, Module: module, Direction: direction} }
	key := maphash.Comparable(seed, of(quantiles[0].name))
	i, again := r.at[key] // of another hook
	_, known := r.before[key]
	switch {
	case again:
		took = r.all[i].of.addTo(slices.Clone(took))
	case !known && r.timed.before+r.timed.fresh >= maxTimed:
		r.omitted += len(quantiles)
		return
	}
	times := pack(took)
	for _, q := range quantiles {
		r.add(Reading{Series: of(q.name), Quantile: &Quantile{times, q.share}})
	}
	if _, added := r.at[key]; added && !again {
		r.timed.now++
		if !known {
			r.timed.fresh++
		}
	}
}

var quantiles = []struct {
	name  string
	share float64
}{{"kerb_module_latency_p50_seconds", 0.5}, {"kerb_module_latency_p99_seconds", 0.99}}

// AddMemory adds the memory of a module's maps.
func (r *Readings) AddMemory(module string, size int64) {
	r.gauge("kerb_module_memory_bytes", v1.Series{Module: module}, float64(size))
}

// AddDrops adds what a module has dropped.
func (r *Readings) AddDrops(module string, all []v1.Drop) {
	for _, d := range all {
		r.count("kerb_dropped_packets_per_second", v1.Series{Module: module, Reason: d.Reason}, float64(d.Packets), true)
		for _, s := range d.Services {
			r.count("kerb_service_dropped_packets_per_second", v1.Series{Service: s.Service}, float64(s.Packets), true)
		}
	}
}

// AddService adds what an interface of a service has counted. The service sends what its interface on the node
// receives.
func (r *Readings) AddService(name string, t Interface) {
	r.addTraffic(v1.Series{Service: name, Direction: "egress"}, t.Received)
	r.addTraffic(v1.Series{Service: name, Direction: "ingress"}, t.Sent)
}

func (r *Readings) addTraffic(of v1.Series, t Traffic) {
	r.count("kerb_service_packets_per_second", of, float64(t.Packets), false)
	r.count("kerb_service_bytes_per_second", of, float64(t.Bytes), false)
}

// Traffic is a number of packets, and their bytes.
type Traffic struct{ Packets, Bytes uint64 }

// Interface is what an interface has counted.
type Interface struct {
	Received, Sent Traffic
	seen           bool
}

// Interfaces are those of the process's network namespace, by name.
type Interfaces map[string]*Interface

// Read reads the counters of all interfaces. If it cannot, there are none. It returns what it has read, for the next
// call: a file of proc says no size, and a slice that grows with it is garbage of several times its size.
func (all Interfaces) Read(buffer []byte) []byte {
	f, err := os.Open("/proc/self/net/dev")
	if err != nil {
		clear(all)
		return buffer
	}
	defer f.Close()
	text := bytes.NewBuffer(buffer[:0])
	if _, err := text.ReadFrom(f); err != nil {
		clear(all)
		return buffer
	}
	all.parse(text.Bytes())
	return text.Bytes()
}

// parse reads the format of /proc/net/dev: after the name, bytes and packets are in columns 0 and 1 of what was
// received, and 8 and 9 of what was sent.
func (all Interfaces) parse(data []byte) {
	for _, i := range all {
		i.seen = false
	}
	for line := range bytes.Lines(data) {
		colon := bytes.LastIndexByte(line, ':') // a name may have others
		if colon < 0 {
			continue
		}
		var n [10]uint64
		column, digits := 0, false
		for _, c := range line[colon+1:] {
			if c >= '0' && c <= '9' {
				n[column], digits = 10*n[column]+uint64(c-'0'), true
			} else if digits {
				if column, digits = column+1, false; column == len(n) {
					break
				}
			}
		}
		if column < len(n) {
			continue
		}
		name := bytes.TrimSpace(line[:colon])
		i := all[string(name)]
		if i == nil {
			i = &Interface{}
			all[string(name)] = i
		}
		*i = Interface{Traffic{n[1], n[0]}, Traffic{n[9], n[8]}, true}
	}
	for name, i := range all {
		if !i.seen {
			delete(all, name)
		}
	}
}
