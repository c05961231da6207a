// SPDX-License-Identifier: Apache-2.0

// Package responder is the control plane of the responder: it writes to the data plane which application answers which
// addresses and ports, gives the applications their maps, and serves their states, values and events.
package responder

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"

	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/sdk"
)

//go:generate go run ./gen

// Control returns the control plane.
func Control() sdk.Control { return sdk.Define(compile) }

func compile(raw json.RawMessage) (*Responder, error) {
	c, listeners, err := parseConfig(raw)
	if err != nil {
		return nil, err
	}
	return &Responder{config: c, listeners: listeners}, nil
}

// Responder is a compiled config.
type Responder struct {
	config    *config
	listeners []*listener
}

// Running is a started map set: a config and the maps that see packets.
type Running struct {
	*Responder
	live   sdk.Live
	placed []app.PlacedListener // the listeners in the order of the config
	watch  *watch

	refreshing sync.Mutex
}

var (
	_ sdk.Compiled          = (*Responder)(nil)
	_ sdk.Handler           = (*Running)(nil)
	_ sdk.Runner            = (*Running)(nil)
	_ sdk.Collector         = (*Running)(nil)
	_ sdk.HealthChecker     = (*Running)(nil)
	_ sdk.AttachmentWatcher = (*Running)(nil)
)

// Open implements sdk.Compiled.
func (f *Responder) Open(live sdk.Live) (sdk.Running, error) {
	placed, err := f.place(live.Maps)
	if err != nil {
		return nil, err
	}
	return &Running{Responder: f, live: live, placed: placed, watch: newWatch(live.Maps)}, claim(live.Maps, placed)
}

// Names of maps in the data plane.
const (
	mapPorts      = "ports"
	mapListeners4 = "listeners4"
	mapListeners6 = "listeners6"
	mapLocal4     = "local4"
	mapLocal6     = "local6"
	mapCounts     = "counts"
	mapOwners     = "owners"
	mapFeeds      = "feeds"
	mapChanges    = "changes"
	mapTotals     = "totals"
)

// partialPolicies are enum rsp_partial_policy.
var partialPolicies = map[string]uint32{"pass": 0, "accept": 1, "virtual": 2}

// Settings implements sdk.Compiled.
func (f *Responder) Settings() sdk.Settings {
	out := sdk.Settings{Constants: map[string]any{
		"by_address":    slices.ContainsFunc(f.listeners, func(l *listener) bool { return len(l.addresses) > 0 }),
		"by_interface":  slices.ContainsFunc(f.listeners, func(l *listener) bool { return len(l.addresses) == 0 }),
		"limit_sources": slices.ContainsFunc(f.listeners, func(l *listener) bool { return l.SourceRate > 0 }),
		"limit_total":   slices.ContainsFunc(f.listeners, func(l *listener) bool { return l.TotalRate > 0 }),
	}, MaxEntries: map[string]uint32{}}
	out.LongReplies = slices.ContainsFunc(f.listeners, func(l *listener) bool { return l.service.Params().LongReplies })
	for i, a := range apps {
		services := f.services(uint8(i))
		out.Constants["use_"+a.name] = len(services) > 0
		if s, ok := a.App.(app.SettingsProvider); ok {
			own := s.Settings(services)
			maps.Copy(out.Constants, own.Constants)
			maps.Copy(out.MaxEntries, own.MaxEntries)
			out.Shape += own.Shape
		}
	}
	if len(f.listeners) == 0 {
		out.Idle = []string{"ingress"}
	}
	return out
}

func (f *Responder) services(number uint8) (out []app.Service) {
	for _, l := range f.listeners {
		if l.number == number {
			out = append(out, l.service)
		}
	}
	return
}

// Entry mirrors struct rsp_listener.
type Entry struct {
	Slot                 uint32            // of its state and counts
	App, Drop            uint8             // enum rsp_app; requests over a limit: 0 pass, 1 drop
	MinRequest           uint16            // bytes of payload; others pass
	MaxRequest, MaxReply uint16            // bytes of payload
	TotalRate            uint32            // requests in 2^27 ns; 0: no limit
	SourceCost           uint64            // ns between two requests of a source in the long run; 0: no limit
	SourceBurst          uint64            // ns that a source may be ahead of that
	Config               [app.Words]uint32 // the application's own
	Amplification        uint32            // IP bytes of a reply for one of the request; 0: no limit
	Partial              uint32            // enum rsp_partial_policy
}

const (
	windowShift = 27      // of struct rsp_total: requests are counted in windows of 2^27 ns
	minBurst    = 1 << 27 // ns that a source may be ahead of its rate: the clock is right to 10 ms
	burst       = 10      // requests that a source may be ahead, if that is longer
)

// entry returns the listener as the data plane reads it. SourceCost is nanoseconds per request of the token bucket;
// TotalRate is requests per window of 2^windowShift nanoseconds, rounded up.
func (f *Responder) entry(l *listener, slot uint32) Entry {
	shape := l.service.Params()
	e := Entry{Slot: slot, App: l.number, MinRequest: shape.MinRequest, MaxRequest: shape.MaxRequest, MaxReply: l.MaxReply,
		Config:        shape.Config,
		Amplification: l.Amplification, Partial: partialPolicies[f.config.PartialChecksums]}
	if l.WhenOver == "drop" {
		e.Drop = 1
	}
	if l.SourceRate > 0 {
		e.SourceCost = max(1, 1e9/uint64(l.SourceRate))
		e.SourceBurst = max(minBurst, burst*e.SourceCost)
	}
	if l.TotalRate > 0 {
		e.TotalRate = uint32(math.Ceil(float64(l.TotalRate) * (1 << windowShift) / 1e9))
	}
	return e
}

// key4 mirrors struct rsp_key4, key6 struct rsp_key6: network byte order, and the half of the config.
type key4 struct {
	Addr [4]byte
	Port [2]byte
	Half uint16
}

type key6 struct {
	Addr [16]byte
	Port [2]byte
	Half uint16
}

// Entries returns the listeners as the data plane has them, in the order of the config, for a module that classifies
// packets itself. The maps must be filled.
func (f *Responder) Entries(m sdk.Maps) ([]Entry, error) {
	placed, err := f.place(m)
	if err != nil {
		return nil, err
	}
	out := make([]Entry, len(placed))
	for i, p := range placed {
		out[i] = f.entry(f.listeners[i], p.Slot)
	}
	return out, nil
}

func portBytes(port uint16) [2]byte { return [2]byte{byte(port >> 8), byte(port)} }

// Fill implements sdk.Compiled. Applications whose maps depend on their config say so in the shape.
func (f *Responder) Fill(m sdk.Maps) error {
	half, err := m.FreeHalf()
	if err != nil {
		return err
	}
	placed, err := f.assign(m)
	if err != nil {
		return err
	}
	if err := f.fillListeners(m, uint16(half), placed); err != nil {
		return err
	}
	if err := f.fillPorts(m, uint32(half)); err != nil {
		return err
	}
	for i, a := range apps {
		if filler, ok := a.App.(app.Filler); ok {
			if err := filler.Fill(m, f.ofApp(uint8(i), placed)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *Responder) ofApp(number uint8, placed []app.PlacedListener) (out []app.PlacedListener) {
	for i, l := range f.listeners {
		if l.number == number {
			out = append(out, placed[i])
		}
	}
	return
}

// fillListeners enters listeners by their addresses; 0 of either family is the interface's.
func (f *Responder) fillListeners(m sdk.Maps, half uint16, placed []app.PlacedListener) error {
	v4, v6 := map[key4]Entry{}, map[key6]Entry{}
	for i, l := range f.listeners {
		addresses := l.addresses
		if len(addresses) == 0 {
			addresses = []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
		}
		entry := f.entry(l, placed[i].Slot)
		for _, a := range addresses {
			if a.Is4() {
				v4[key4{Addr: a.As4(), Port: portBytes(l.Port), Half: half}] = entry
			} else {
				v6[key6{Addr: a.As16(), Port: portBytes(l.Port), Half: half}] = entry
			}
		}
	}
	if err := sdk.SyncTable(m, mapListeners4, v4, func(k key4, _ Entry) bool { return k.Half == half }); err != nil {
		return err
	}
	return sdk.SyncTable(m, mapListeners6, v6, func(k key6, _ Entry) bool { return k.Half == half })
}

// ports mirrors struct rsp_ports.
type ports struct {
	Zero       uint64       // the verifier reads it
	Answered   [2048]uint32 // bits by destination port of listeners
	NotSources [2048]uint32 // bits by source port that gets no answer
}

// talkative services answer anything that comes to their port (echo, daytime, qotd, chargen, time): answering them
// would never end.
var talkative = []uint16{0, 7, 13, 17, 19, 37}

// fillPorts is called when the listeners of both halves are in their tables.
func (f *Responder) fillPorts(m sdk.Maps, half uint32) error {
	var both [2]ports
	for i := range both {
		if err := m.Lookup(mapPorts, uint32(i), &both[i]); err != nil {
			return err
		}
	}
	p := &both[half]
	p.NotSources = [2048]uint32{}
	for _, port := range talkative {
		set(&p.NotSources, port)
	}
	for _, l := range f.listeners {
		set(&p.NotSources, l.Port)
	}
	var err error
	if both[0].Answered, err = answeredPorts(m); err != nil {
		return err
	}
	for i := range both {
		if err := m.Put(mapPorts, uint32(i), &both[i]); err != nil {
			return err
		}
	}
	return nil
}

// answeredPorts are those of listeners of either half.
func answeredPorts(m sdk.Maps) (out [2048]uint32, err error) {
	v4, err := sdk.ReadTable[key4, Entry](m, mapListeners4)
	if err != nil {
		return out, err
	}
	v6, err := sdk.ReadTable[key6, Entry](m, mapListeners6)
	for key := range v4 {
		set(&out, binary.BigEndian.Uint16(key.Port[:]))
	}
	for key := range v6 {
		set(&out, binary.BigEndian.Uint16(key.Port[:]))
	}
	return out, err
}

func set(bits *[2048]uint32, port uint16) { bits[port>>5] |= 1 << (port & 31) }
