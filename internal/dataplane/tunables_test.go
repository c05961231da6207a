// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// tunable is the module of testdata/tunable that drops frames of one length.
func tunable(t testing.TB, length int) Module {
	m := testModule(t, "tunable", "tunable", nil)
	spec := m.Spec
	m.Spec = func(h chain.Hook) (*ebpf.CollectionSpec, error) {
		if h != chain.TC {
			return nil, nil
		}
		return spec(h)
	}
	m.Values, m.ConfigMaps = fmt.Sprint("length", length), []string{"lengths"}
	m.Settings.Tunables = map[string]any{"length": length, "odd": length&1 == 1}
	m.Fill = func(maps sdk.Maps) error {
		half, err := maps.FreeHalf()
		if err != nil {
			return err
		}
		return maps.Put("lengths", uint32(half), uint64(length))
	}
	return m
}

// tuned is a pinned map set of tunable with its chain.
type tuned struct {
	*Dataplane
	prog *ebpf.Program
	id   string
}

func newTuned(t *testing.T, length int) *tuned {
	w := newWorld(t, Options{})
	m := tunable(t, length)
	p := chain.Point{Ifindex: w.a.OuterIndex(), Side: chain.OnTCIngress}
	spec := w.deploy(t, p, chain.Egress, m)
	prog, err := ebpf.LoadPinnedProgram(entryPin(w.layout.chain(spec)), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	return &tuned{w.Dataplane, prog, m.ID}
}

func (d *tuned) set(m Module, values string) error {
	return d.Bind(map[string]Module{m.Name: m}).SetValues(m.Name, d.id, values)
}

// has checks which values packets meet, and that the agent observes them.
func (d *tuned) has(t *testing.T, length int) {
	t.Helper()
	for _, size := range []int{99, 100, 101} {
		verdict, _ := run(t, d.prog, make([]byte, size))
		if dropped := verdict == tcShot; dropped != (size == length) {
			t.Errorf("values for %d: a frame of %d bytes is dropped: %t", length, size, dropped)
		}
	}
	state, err := d.Observe()
	if got := state.Values[chain.MapSet{Module: "tunable", ID: d.id}]; err != nil ||
		got != fmt.Sprint("length", length) {
		t.Errorf("observed values %q, want those for %d (%v)", got, length, err)
	}
}

// Maps that the caller has open are not opened again: there is nothing else to open. Those of another map set are,
// and those that were made in place of ones whose pins were lost.
func TestValuesByOpenMaps(t *testing.T) {
	d := newTuned(t, 99)
	open, err := d.Maps("tunable", d.id)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(open)
	dir := d.layout.mapSet("tunable", d.id)
	for name := range open {
		if name != sdk.TunablesMap {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	m := tunable(t, 100)
	m.ID, m.Open = d.id, open
	if err := d.set(m, m.Values); err != nil {
		t.Fatal(err)
	}
	if verdict, _ := run(t, d.prog, make([]byte, 100)); verdict != tcShot {
		t.Error("packets do not meet the new values")
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	for _, m.ID = range []string{d.id, "other"} {
		if err := d.set(m, m.Values); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("maps of %s, without the pins of %s: %v", m.ID, d.id, err)
		}
	}
}

// Values change and go back without a new program. What fails leaves the values of before.
func TestSetValues(t *testing.T) {
	d := newTuned(t, 99)
	d.has(t, 99)
	next := tunable(t, 100)
	if err := d.set(next, next.Values); err != nil {
		t.Fatal(err)
	}
	d.has(t, 100)
	if err := d.set(next, "length99"); err != nil { // as to undo it
		t.Fatal(err)
	}
	d.has(t, 99)
	if err := d.set(next, "length4711"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("unknown values: %v", err)
	}
	d.has(t, 99)
	full, broken := errors.New("no space"), tunable(t, 101)
	broken.Fill = func(maps sdk.Maps) error {
		half, _ := maps.FreeHalf()
		return errors.Join(full, maps.Put("lengths", uint32(half), uint64(101)))
	}
	if err := d.set(broken, broken.Values); !errors.Is(err, full) {
		t.Errorf("a control plane that fails: %v", err)
	}
	d.has(t, 99)
	if err := d.set(next, next.Values); err != nil { // its half was overwritten in part
		t.Fatal(err)
	}
	d.has(t, 100)
}

// Whenever an agent is killed, packets meet all the values of before or all the new ones, and the next agent observes
// which.
func TestKilledWhileValuesChange(t *testing.T) {
	killed := errors.New("killed")
	for _, when := range []string{"before the control plane", "after the control plane", "after the change"} {
		t.Run(when, func(t *testing.T) {
			d, want := newTuned(t, 99), 99
			next := tunable(t, 100)
			fill := next.Fill
			next.Fill = func(maps sdk.Maps) error {
				if when == "before the control plane" {
					panic(killed)
				}
				err := fill(maps)
				if when == "after the control plane" {
					panic(killed)
				}
				return err
			}
			func() {
				defer func() {
					if r := recover(); r != nil && r != killed {
						panic(r)
					}
				}()
				if err := d.set(next, next.Values); err == nil {
					want = 100
				}
			}()
			again, err := Open(Options{Root: d.opts.Root})
			if err != nil {
				t.Fatal(err)
			}
			d.Dataplane = again
			d.has(t, want)
			last := tunable(t, 101)
			if err := d.set(last, last.Values); err != nil {
				t.Fatal(err)
			}
			d.has(t, 101)
		})
	}
}

// A half is not written while packets may read it: an agent that has just started, too, waits for those of the change
// that a killed one may have made.
func TestHalfIsLeftAloneWhileItIsRead(t *testing.T) {
	d, maps := newTuned(t, 99), sdk.Maps{}
	waits := 0
	awaitPackets = func() error {
		waits++
		return errors.New("not yet")
	}
	t.Cleanup(func() { awaitPackets = awaitGracePeriod })
	next := tunable(t, 100)
	next.Fill = func(m sdk.Maps) error {
		maps = m
		return nil
	}
	if err := d.set(next, next.Values); err == nil || waits != 1 || len(maps) != 0 {
		t.Errorf("waited %d times, then wrote %d maps: %v", waits, len(maps), err)
	}
	d.has(t, 99)
}

// A packet meets one set of values, however fast they change.
func TestValuesAreConsistent(t *testing.T) {
	d := newTuned(t, 99)
	stop := make(chan struct{})
	var packets sync.WaitGroup
	packets.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := d.prog.Run(&ebpf.RunOptions{Data: make([]byte, 60), Repeat: 1000}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range 200 {
		m := tunable(t, 1000+i%7)
		if err := d.set(m, m.Values); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	packets.Wait()
	maps, err := d.Maps("tunable", d.id)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(maps)
	drops, err := Drops(maps)
	if err != nil {
		t.Fatal(err)
	}
	for reason, n := range drops {
		if n != 0 {
			t.Errorf("%d packets dropped for reason %d: they met values of two changes", n, reason)
		}
	}
}

// A value that the struct does not have, or that does not fit it, fails before there are maps.
func TestUnknownValues(t *testing.T) {
	for name, value := range map[string]any{"lenght": 1, "odd": 256} {
		m := tunable(t, 99)
		m.Settings.Tunables[name] = value
		if g, err := newMapSet(m, nil, nil); err == nil {
			g.Close()
			t.Errorf("%s: %v is accepted", name, value)
		}
	}
}

// A package may have tunables on one hook only.
func TestValuesOfOneHook(t *testing.T) {
	m := tunable(t, 99)
	spec := m.Spec
	m.Spec = func(h chain.Hook) (*ebpf.CollectionSpec, error) {
		s, err := spec(chain.TC)
		if err == nil && h == chain.TC {
			delete(s.Maps, sdk.TunablesMap)
		}
		return s, err
	}
	g, err := newMapSet(m, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	g.Close()
}
