// SPDX-License-Identifier: Apache-2.0

package classifier_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
)

// attacked is a classifier that nodes flood, with a model that detects them.
type attacked struct {
	*kernel
	seq byte
	now uint64
}

// windowed returns a config with windows of one second, in which each frame counts, and overrides.
func windowed(t testing.TB, values string) dataplane.Module {
	t.Helper()
	return module(t, compile(t, `{"window": "1s", "rpl": {"repeats": "0s"}, `+values+`}`), nil)
}

func loadAttacked(t *testing.T, hook chain.Hook, values string) *attacked {
	t.Helper()
	k := loadModule(t, hook, windowed(t, values))
	k.use(0, "rpl", "dis", 10)
	return &attacked{kernel: k, now: 100 * second}
}

// change sets other values in the data plane without replacing the program.
func (k *attacked) change(values string) {
	k.t.Helper()
	if err := k.loaded.SetValues(windowed(k.t, values)); err != nil {
		k.t.Fatal(err)
	}
}

// attack floods from a node for a window, and returns the verdict on the last of the following packets.
func (k *attacked) attack(n uint64, follow int) verdict {
	k.t.Helper()
	k.at(k.now)
	k.flood(n, &k.seq, 20)
	k.now += second
	k.at(k.now)
	return k.flood(n, &k.seq, follow)
}

func (k *attacked) expect(what string, got, want verdict) {
	k.t.Helper()
	if got != want {
		k.t.Errorf("%s: %s", what, got)
	}
}

// Configs that differ in one value.
const (
	fuseOff = `"fuse": {"sourceShare": 100}`
	atOnce  = `"hysteresis": {"hits": 1, "of": 1}, "action": {"do": "drop", "for": "1h"}`
	patient = `"hysteresis": {"hits": 2, "of": 2}, "action": {"do": "rateLimit", "rate": 1, "burst": 1}, ` + fuseOff
	watches = atOnce + `, "mode": "watch", ` + fuseOff
	drops   = atOnce + `, ` + fuseOff
	allows7 = atOnce + `, "allow": ["00:12:4b:00:00:00:00:07", "192.0.2.0/24"], ` + fuseOff
)

// The action on sources changes and changes back, while program, blocks and windows stay.
func TestValuesChange(t *testing.T) {
	for _, hook := range hooks {
		t.Run(string(hook), func(t *testing.T) {
			k := loadAttacked(t, hook, drops)
			k.expect("attacker", k.attack(7, 2), dropped)
			for range 3 { // the second half, the first one again, and the second one over its old contents
				k.change(watches)
				k.expect("attacker that is watched", k.run(disFrame(7, 0)), passed)
				k.change(drops)
				k.expect("attacker of before", k.run(disFrame(7, 0)), dropped)
			}
			k.change(patient)
			k.expect("one of two evaluations", k.attack(8, 3), passed)
			k.expect("two of two evaluations", k.attack(8, 4), dropped)
			if got := k.block(euiKey(8)); got == nil || got.Until-got.Since != 60*second || got.Action != doRateLimit {
				t.Errorf("%+v", got)
			}
			k.change(drops)
			k.expect("attacker of before", k.run(disFrame(7, 0)), dropped)
			k.expect("one of one evaluation", k.attack(9, 2), dropped)
			k.events()
			k.change(drops + `, "events": "all"`)
			k.attack(9, 1)
			if got := kinds(k.events()); fmt.Sprint(got) != "[evaluated 3]" {
				t.Errorf("events %v", got)
			}
			k.change(atOnce + `, "fuse": {"sources": 3}`)
			k.expect("more than the fuse allows", k.attack(2, 2), passed)
			if got := k.fuse(); got.Cause != 1 || got.Blocked != 3 {
				t.Errorf("%+v", got)
			}
		})
	}
}

// The allow-list changes with the values. One that is written but not activated, as when a change fails, has no effect.
func TestAllowListChanges(t *testing.T) {
	for _, hook := range hooks {
		t.Run(string(hook), func(t *testing.T) {
			k := loadAttacked(t, hook, allows7)
			k.expect("allowed", k.attack(7, 2), passed)
			if err := compile(t, `{`+drops+`}`).Fill(k.maps); err != nil {
				t.Fatal(err)
			}
			k.expect("allowed before a change that fails", k.attack(7, 2), passed)
			k.change(drops)
			if err := compile(t, `{`+allows7+`}`).Fill(k.maps); err != nil {
				t.Fatal(err)
			}
			k.expect("allowed in a change that fails", k.attack(7, 2), dropped)
			for range 2 {
				k.change(allows7)
				k.change(drops)
			}
			if n := k.len("allowed"); n != 2 {
				t.Errorf("%d prefixes", n)
			}
		})
	}
}

// No packet sees the action of one config with the allow-list of the other.
func TestNoMixture(t *testing.T) {
	const (
		allows  = `"evaluate": {"when": "packet"}, ` + allows7
		reports = `"evaluate": {"when": "packet"}, "hysteresis": {"hits": 1, "of": 1}, ` + fuseOff
	)
	k := loadAttacked(t, chain.XDP, reports)
	k.at(k.now)
	var changes sync.WaitGroup
	stop := make(chan struct{})
	changes.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				k.change(allows)
				k.change(reports)
			}
		}
	})
	for range 200 {
		k.runs(disFrame(7, 0), 1000)
	}
	close(stop)
	changes.Wait()
	if b, n := k.block(euiKey(7)), k.count(countAllowed); b != nil || n == 0 {
		t.Errorf("block %+v, %d times allowed", b, n)
	}
}
