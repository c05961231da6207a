// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/sdk"
)

const bigTables = `{"tables": {"addresses": 32768, "ports": 65536, "instances": 100000, "slots": 1048576}}`

// bigServices returns virtual services with addresses of both families, a port, and instances.
func bigServices(services, instances int) []sdk.VirtualService {
	out := make([]sdk.VirtualService, services)
	for i := range out {
		vs := sdk.VirtualService{Name: fmt.Sprintf("service-%d", i)}
		vs.Spec.Addresses = []v1alpha1.VirtualAddress{{Address: fmt.Sprintf("10.30.%d.%d", i>>8, i&255)},
			{Address: fmt.Sprintf("fdff:2000::%x", i)}}
		vs.Spec.Ports = []v1alpha1.VirtualPort{{Port: 80, TargetPort: 8080}}
		for j := range instances {
			n := i*instances + j
			vs.Spec.Instances = append(vs.Spec.Instances, v1alpha1.VirtualInstance{Name: fmt.Sprintf("i-%d", j),
				Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 100+n>>16, n>>8&255, n&255),
					fmt.Sprintf("fd00::%x:%x", n>>16, n&0xffff)}})
		}
		out[i] = vs
	}
	return out
}

// sendAll sends all services in chunks from JSON, as the agent does.
func (p *testControl) sendAll(all []sdk.VirtualService) time.Duration {
	p.t.Helper()
	const chunk = 500
	took := time.Duration(0)
	for from := 0; from < len(all); from += chunk {
		to := min(from+chunk, len(all))
		text, err := json.Marshal(sdk.VirtualServiceUpdate{Reset: from == 0, Complete: to == len(all), Put: all[from:to]})
		if err != nil {
			p.t.Fatal(err)
		}
		begin := time.Now()
		var u sdk.VirtualServiceUpdate
		if err := json.Unmarshal(text, &u); err != nil {
			p.t.Fatal(err)
		}
		p.update(u)
		took += time.Since(begin)
	}
	return took
}

func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// BenchmarkScale measures 10,000 virtual services with 100,000 instances: the time to receive all of them, to receive
// them again after a restart, to change one, and for maintenance, and the memory in addition to the maps.
func BenchmarkScale(b *testing.B) {
	all := bigServices(10_000, 10)
	p := newTestControl(b, bigTables)
	figures := map[string]float64{}
	timed := func(name string, do func()) {
		begin := time.Now()
		do()
		figures[name] = float64(time.Since(begin).Microseconds()) / 1000
	}
	before := heap()
	figures["tell-ms"] = float64(p.sendAll(all).Milliseconds())
	if err := p.w.Health(); err != nil {
		b.Fatal(err)
	}
	figures["heap-MiB"] = heap() - before
	timed("adopt-ms", func() { p.restart(bigTables) })
	figures["retell-ms"] = float64(p.sendAll(all).Milliseconds())
	timed("sweep-ms", p.sweep)
	timed("attach-ms", func() { p.changed(localInstance("x", 7, "10.100.0.7/24"), true) })
	n := 0
	for b.Loop() {
		vs := all[n%len(all)]
		vs.Spec.Instances[0].Addresses = []string{fmt.Sprintf("10.200.%d.%d", n>>8&255, n&255)}
		p.put(vs)
		n++
	}
	for name, value := range figures {
		b.ReportMetric(value, name)
	}
}

// BenchmarkPut changes one virtual service by policy and number of instances.
func BenchmarkPut(b *testing.B) {
	for _, policy := range []v1alpha1.Policy{v1alpha1.PolicyRoundRobin, v1alpha1.PolicyWeighted,
		v1alpha1.PolicyConsistentHash} {
		for _, n := range []int{10, 100} {
			b.Run(fmt.Sprintf("%s/%d", policy, n), func(b *testing.B) {
				p := newTestControl(b, bigTables)
				vs := webService(n, policy)
				at := 0
				for b.Loop() {
					vs.Spec.Instances[0].Draining = at%2 == 0
					p.now = p.now.Add(restFor)
					p.put(vs)
					at++
				}
			})
		}
	}
}

// BenchmarkLookup looks up a virtual address among few and among many; later steps do not depend on their number.
func BenchmarkLookup(b *testing.B) {
	for _, services := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			data := loadProxy(b, nil)
			p := newTestControlOn(b, bigTables, data.maps)
			p.sendAll(bigServices(services, 10))
			// unassigned: looked up, dropped
			measure(b, data.egress, tcp("10.18.9.9", 1000, "10.30.0.7", 80, tcpRST).bytes())
		})
	}
}
