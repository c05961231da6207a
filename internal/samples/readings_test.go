// SPDX-License-Identifier: Apache-2.0

package samples

import (
	"maps"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

func TestInterfaces(t *testing.T) {
	all := Interfaces{"gone": {}}
	all.parse([]byte("Inter-|   Receive    |  Transmit\n" +
		" face |bytes    packets errs drop fifo|bytes    packets errs drop\n" +
		"    lo:  100       2    0    0    0     0    0   0      300       4    0    0    0     0       0          0\n" +
		"eth0:1: 18446744073709551615 7 0 0 0 0 0 0 50 6 0 0 0 0 0 0\n" +
		"cut: 1 2\n"))
	got := map[string]Interface{}
	for name, i := range all {
		got[name] = *i
	}
	want := map[string]Interface{"lo": {Traffic{2, 100}, Traffic{4, 300}, true},
		"eth0:1": {Traffic{7, 18446744073709551615}, Traffic{6, 50}, true}}
	if !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

// TestReadings adds up what is of one series: interfaces of a service, reasons of drops of a service.
func TestReadings(t *testing.T) {
	var r Readings
	r.Reset()
	r.AddMemory("old", 1)
	r.Reset()
	r.AddService("web", Interface{Received: Traffic{1, 10}, Sent: Traffic{2, 20}})
	r.AddService("web", Interface{Received: Traffic{100, 1000}, Sent: Traffic{200, 2000}})
	r.AddDrops("fw", []v1.Drop{{Reason: "policy", Packets: 9, Services: []v1.ServiceDrop{{Service: "web", Packets: 4}}},
		{Reason: "state", Packets: 1, Services: []v1.ServiceDrop{{Service: "web", Packets: 1}}}})
	r.AddModule("fw", "egress", "next", 5, 50)
	r.AddMemory("fw", 4096)
	got := map[v1.Series]float64{}
	for _, n := range r.All() {
		if _, twice := got[n.Series]; twice {
			t.Errorf("%v is there twice", n.Series)
		}
		got[n.Series] = n.Value
	}
	of := func(name, direction string) v1.Series {
		return v1.Series{Name: name, Service: "web", Direction: direction}
	}
	want := map[v1.Series]float64{
		of("kerb_service_packets_per_second", "egress"): 101, of("kerb_service_packets_per_second", "ingress"): 202,
		of("kerb_service_bytes_per_second", "egress"): 1010, of("kerb_service_bytes_per_second", "ingress"): 2020,
		of("kerb_service_dropped_packets_per_second", ""):                                            5,
		{Name: "kerb_dropped_packets_per_second", Module: "fw", Reason: "policy"}:                    9,
		{Name: "kerb_dropped_packets_per_second", Module: "fw", Reason: "state"}:                     1,
		{Name: "kerb_module_packets_per_second", Module: "fw", Direction: "egress", Verdict: "next"}: 5,
		{Name: "kerb_module_bytes_per_second", Module: "fw", Direction: "egress", Verdict: "next"}:   50,
		{Name: "kerb_module_memory_bytes", Module: "fw"}:                                             4096,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}
