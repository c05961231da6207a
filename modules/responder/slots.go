// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/modules/responder/app"
	"github.com/kerb-edge/kerb/sdk"
)

// slots mirrors RSP_SLOTS: twice the listeners, so that those of a new configuration have room alongside those of the
// running one. Slot 0 counts what no listener was found for.
const slots = 64

// owner mirrors struct rsp_owner.
type owner struct{ Name, Fill uint64 }

// identity of a listener: what has it keeps its counters and its state.
func (l *listener) identity() uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s", l.App, l.Name)
	return h.Sum64() | 1
}

func readOwners(m sdk.Maps) (out [slots]owner, err error) {
	owners, err := m.Get(mapOwners)
	if err != nil {
		return out, err
	}
	for slot := range out {
		if err := owners.Lookup(uint32(slot), &out[slot]); err != nil {
			return out, fmt.Errorf("read map %s: %w", mapOwners, err)
		}
	}
	return out, nil
}

// assign gives each listener its slot: the one it has, else the one unused for longest. Slots of the running
// configuration are left alone, however many others were tried since.
func (f *Responder) assign(m sdk.Maps) ([]app.PlacedListener, error) {
	owners, err := readOwners(m)
	if err != nil {
		return nil, err
	}
	var last uint64
	for _, o := range owners {
		last = max(last, o.Fill)
	}
	out := make([]app.PlacedListener, len(f.listeners))
	for i, l := range f.listeners {
		slot, found := slotOf(&owners, l)
		if !found {
			if slot = leastUsed(&owners, last+1); slot == 0 {
				return nil, errors.New("no slot is left")
			}
			if err := clear(m, slot); err != nil {
				return nil, err
			}
		}
		owners[slot] = owner{l.identity(), last + 1}
		if err := m.Put(mapOwners, slot, owners[slot]); err != nil {
			return nil, err
		}
		out[i] = l.placed(slot)
		out[i].Fresh = !found
	}
	return out, nil
}

func (l *listener) placed(slot uint32) app.PlacedListener {
	return app.PlacedListener{Name: l.Name, Port: l.Port, Slot: slot, Service: l.service}
}

func slotOf(owners *[slots]owner, l *listener) (uint32, bool) {
	for slot := 1; slot < slots; slot++ {
		if owners[slot].Name == l.identity() {
			return uint32(slot), true
		}
	}
	return 0, false
}

func leastUsed(owners *[slots]owner, filling uint64) (best uint32) {
	running := owners[0].Name
	for slot := uint32(1); slot < slots; slot++ {
		if o := owners[slot]; running>>slot&1 == 0 && o.Fill < filling && (best == 0 || o.Fill < owners[best].Fill) {
			best = slot
		}
	}
	return
}

// claim notes which slots the running configuration has.
func claim(m sdk.Maps, placed []app.PlacedListener) error {
	var running owner
	for _, p := range placed {
		running.Name |= 1 << p.Slot
	}
	return m.Put(mapOwners, uint32(0), running)
}

// clear empties what the data plane counts in a slot.
func clear(m sdk.Maps, slot uint32) error {
	n, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	return errors.Join(m.Put(mapCounts, slot, make([]counts, n)),
		m.Put(mapTotals, slot, [2]uint64{}), m.Put(mapFeeds, slot, feed{}))
}

// place finds the slots of the listeners in maps that were filled, by this process or by the one before it.
func (f *Responder) place(m sdk.Maps) ([]app.PlacedListener, error) {
	owners, err := readOwners(m)
	if err != nil {
		return nil, err
	}
	out := make([]app.PlacedListener, len(f.listeners))
	for i, l := range f.listeners {
		slot, found := slotOf(&owners, l)
		if !found {
			return nil, fmt.Errorf("listener %s has no slot in the data plane", l.Name)
		}
		out[i] = l.placed(slot)
	}
	return out, nil
}
