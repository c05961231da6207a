// SPDX-License-Identifier: Apache-2.0

// Package intercept is the control plane of intercept: it writes the classes to the data plane, gives programs the maps
// of the classes that they open, and reports how packets were handled.
package intercept

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/modules/responder"
	"github.com/kerb-edge/kerb/sdk"
)

// Control returns the control plane.
func Control() sdk.Control {
	consumers, exits := newConsumers(), &exits{}
	return sdk.Define(func(raw json.RawMessage) (*Intercept, error) { return compile(raw, consumers, exits) })
}

func compile(raw json.RawMessage, consumers *consumers, exits *exits) (*Intercept, error) {
	conf, err := parseConfig(raw)
	if err != nil {
		return nil, err
	}
	answers, err := conf.answering()
	if err != nil {
		return nil, err
	}
	exits.resolve(conf.Classes)
	return &Intercept{config: conf, answers: answers, consumers: consumers, exits: exits}, nil
}

// Intercept is a compiled config.
type Intercept struct {
	*config
	answers   *responder.Responder // of the classes that are answered
	consumers *consumers
	exits     *exits
}

// running is a started map set: a config and the maps that see packets.
type running struct {
	*Intercept
	live    sdk.Live
	half    int                // of the table
	answers *responder.Running // nil if no class is answered
	ended   chan struct{}      // closed at the end of Run
}

var (
	_ sdk.Compiled          = (*Intercept)(nil)
	_ sdk.Handler           = (*running)(nil)
	_ sdk.Runner            = (*running)(nil)
	_ sdk.Collector         = (*running)(nil)
	_ sdk.NoteNamer         = (*running)(nil)
	_ sdk.ClientServer      = (*running)(nil)
	_ sdk.AttachmentWatcher = (*running)(nil)
	_ sdk.Conditioner       = (*running)(nil)
)

// Open implements sdk.Compiled.
func (f *Intercept) Open(live sdk.Live) (sdk.Running, error) {
	half, err := live.Maps.ActiveHalf()
	if err != nil {
		return nil, err
	}
	g := &running{Intercept: f, live: live, half: half, ended: make(chan struct{})}
	if err := g.refreshExits(); err != nil {
		return nil, err
	}
	if len(f.answered()) == 0 {
		return g, nil
	}
	answers, err := f.answers.Open(live)
	if err != nil {
		return nil, err
	}
	g.answers = answers.(*responder.Running)
	return g, nil
}

// Names of maps in the data plane.
const (
	mapTable      = "table"
	mapFlows      = "flows"
	mapConsumers  = "consumers"
	mapCounts     = "class_counts"
	mapAnswers    = "answers"
	mapXSKs       = "xsks"
	mapInterfaces = "xsk_interfaces"
)

func ringName(slot int) string    { return fmt.Sprintf("ring_%d", slot) }
func stateName(slot int) string   { return fmt.Sprintf("state_%d", slot) }
func controlName(slot int) string { return fmt.Sprintf("control_%d", slot) }

// Settings implements sdk.Compiled.
func (f *Intercept) Settings() sdk.Settings {
	out := sdk.Settings{MaxEntries: map[string]uint32{}}
	f.settleAnswers(&out)
	out.Constants["use_forwards"] = slices.ContainsFunc(f.Classes, func(c *class) bool { return c.Forward != nil })
	out.Constants["use_labels"] = slices.ContainsFunc(f.Classes, func(c *class) bool { return c.Match.Label != 0 })
	var directions uint8
	for _, c := range f.Classes {
		directions |= c.directions()
		out.Shape += fmt.Sprintf(" %s %d", c.Name, c.slot) // a program that has the class open keeps its ring and its page
		if c.slot != noRing {
			out.MaxEntries[ringName(c.slot)] = c.ringSize
		}
	}
	if directions&isIngress == 0 {
		out.Idle = append(out.Idle, "ingress")
	}
	if directions&isEgress == 0 {
		out.Idle = append(out.Idle, "egress")
	}
	return out
}

// Fill implements sdk.Compiled.
func (f *Intercept) Fill(m sdk.Maps) error {
	half, err := m.FreeHalf()
	if err != nil {
		return err
	}
	if err := f.fillTable(m, uint32(half)); err != nil {
		return err
	}
	if err := f.fillAnswers(m, uint32(half)); err != nil {
		return err
	}
	return f.fillPages(m)
}

func (f *Intercept) fillTable(m sdk.Maps, half uint32) error {
	f.consumers.writing.Lock()
	defer f.consumers.writing.Unlock()
	return m.Put(mapTable, half, f.table())
}

// fillPages begins the pages of classes that programs can open. Those that packets have met stay: begin changes them
// when packets meet the values.
func (f *Intercept) fillPages(m sdk.Maps) error {
	generation, identity := uint64(time.Now().UnixNano()), f.table().Identity // another generation for each
	if err := f.count(m); err != nil {
		return err
	}
	for _, c := range f.Classes {
		if c.slot == noRing {
			continue
		}
		page := make([]byte, pageBytes)
		if err := m.Lookup(stateName(c.slot), uint32(0), &page); err != nil {
			return err
		}
		s := pageOf(page)
		if s.Generation != 0 {
			continue
		}
		s.Generation = generation
		s.begin(c, identity)
		if f.consumers.of(c.Name) != nil { // it opens the class again, and packets are kept for it meanwhile
			if err := setConsumer(m, c.slot, 1); err != nil {
				return err
			}
		}
		if err := m.Put(stateName(c.slot), uint32(0), page); err != nil {
			return err
		}
	}
	return nil
}

// count makes the counters of classes that had none in the configuration before. There is room for two configurations:
// those of trials that came to nothing make way.
func (f *Intercept) count(m sdk.Maps) error {
	table, err := m.Get(mapCounts)
	if err != nil {
		return err
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	zero := make([]countsEntry, cpus)
	for _, c := range f.Classes {
		err := table.Update(c.identity(), zero, ebpf.UpdateNoExist)
		if errors.Is(err, unix.E2BIG) {
			if err = f.forget(m, f.consumers.running()); err == nil {
				err = table.Update(c.identity(), zero, ebpf.UpdateNoExist)
			}
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			return fmt.Errorf("write map %s: %w", mapCounts, err)
		}
	}
	return nil
}

// forget removes the counters of classes that are neither of this configuration nor of the other.
func (f *Intercept) forget(m sdk.Maps, other []*class) error {
	kept := slices.Concat(f.Classes, other)
	table, err := m.Get(mapCounts)
	if err != nil {
		return err
	}
	var gone []uint64
	var id uint64
	var each []countsEntry
	all := table.Iterate()
	for all.Next(&id, &each) {
		if !slices.ContainsFunc(kept, func(c *class) bool { return c.identity() == id }) {
			gone = append(gone, id)
		}
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("read map %s: %w", mapCounts, err)
	}
	for _, id := range gone {
		if err := table.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete from map %s: %w", mapCounts, err)
		}
	}
	return nil
}
