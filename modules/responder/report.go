// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"fmt"

	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/sdk"
)

// outcomes are enum rsp_outcome by name; "" is not used. Those of an application begin at firstReason.
var outcomes = [...]string{"answered", "consumed", "malformed", "later_fragment", "other_address", "fragment",
	"not_linear",
	"link_address", "source_address", "source_port", "options", "size", "header_checksum", "checksum", "reply_size",
	"source_limit",
	"total_limit", "no_room", "lost", "unproven", "challenged"}

const (
	firstReason = 24
	reasons     = 8
)

// counts mirrors struct rsp_counts.
type counts [firstReason + reasons]uint64

// byName leaves out what is zero.
func (c *counts) byName(a app.App) map[string]uint64 {
	out := map[string]uint64{}
	for i, n := range c {
		if n > 0 {
			out[outcomeName(i, a)] = n
		}
	}
	return out
}

func outcomeName(i int, a app.App) string {
	if i < len(outcomes) {
		return outcomes[i]
	}
	if namer, ok := a.(app.ReasonNamer); ok && i >= firstReason {
		if names := namer.Reasons(); i-firstReason < len(names) {
			return names[i-firstReason]
		}
	}
	return fmt.Sprintf("reason_%d", i-firstReason)
}

// ListenerReport is a listener with the counters of its packets. Those that are neither answered nor consumed, nor
// dropped by a limit, went on to the ordinary server.
type ListenerReport struct {
	Name      string            `json:"name"`
	App       string            `json:"app"`
	Port      uint16            `json:"port"`
	Addresses []string          `json:"addresses,omitempty"` // none: those of the interface
	Packets   map[string]uint64 `json:"packets"`
}

// Report is the answer of GET listeners.
type Report struct {
	Listeners []ListenerReport  `json:"listeners"`
	Other     map[string]uint64 `json:"other"` // of packets that no listener was found for
}

// report returns counters per listener, summed over CPUs. Slot 0 counts packets that no listener took.
func (f *Running) report() (*Report, error) {
	out := &Report{Listeners: []ListenerReport{}}
	for i, l := range f.listeners {
		c, err := sdk.Sum[counts](f.live.Maps, mapCounts, f.placed[i].Slot)
		if err != nil {
			return nil, err
		}
		out.Listeners = append(out.Listeners, ListenerReport{l.Name, l.App, l.Port, l.Addresses,
			c.byName(apps[l.number].App)})
	}
	c, err := sdk.Sum[counts](f.live.Maps, mapCounts, uint32(0))
	out.Other = c.byName(nil)
	return out, err
}

// Collect implements sdk.Collector.
func (f *Running) Collect() ([]sdk.Sample, error) {
	report, err := f.report()
	if err != nil {
		return nil, err
	}
	var out []sdk.Sample
	add := func(listener, app string, packets map[string]uint64) {
		for outcome, n := range packets {
			out = append(out, sdk.Sample{Name: "packets_total", Help: "Packets to served ports, by outcome.", Counter: true,
				Labels: map[string]string{"listener": listener, "app": app, "outcome": outcome}, Value: float64(n)})
		}
	}
	for _, l := range report.Listeners {
		add(l.Name, l.App, l.Packets)
	}
	add("", "", report.Other)
	return out, nil
}
