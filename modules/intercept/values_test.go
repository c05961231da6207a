// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

// change sets the values of another config in the data plane without replacing the program, and activates them as Run
// does.
func (k *kernel) change(config string) {
	k.t.Helper()
	before := &running{Intercept: k.Intercept, live: sdk.Live{Maps: k.maps}, half: int(k.half())}
	next := compileConfig(k.t, config)
	next.consumers = k.consumers
	if err := k.loaded.SetValues(module(k.t, next)); err != nil {
		k.t.Fatal(err)
	}
	if !before.isSucceeded() {
		k.t.Fatal("the values have not changed")
	}
	before.takeBack()
	k.Intercept = next
	next.begin(k.pages)
}

// A configuration that ends late does not touch its half if that is being filled for a later one.
func TestTakesBackItsOwnHalf(t *testing.T) {
	k := load(t, chain.TC, chain.Ingress, threeClasses)
	first := &running{Intercept: k.Intercept, live: sdk.Live{Maps: k.maps}, half: int(k.half())}
	if err := k.loaded.SetValues(module(t, compileConfig(t, otherClasses))); err != nil {
		t.Fatal(err)
	}
	read := func() (out tableEntry) {
		t.Helper()
		if err := k.maps.Lookup(mapTable, uint32(first.half), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	changed := *first.table()
	changed.Classes[0][0].Stopped, changed.Classes[1][0].Stopped = 1, 1
	if err := k.maps.Put(mapTable, uint32(first.half), &changed); err != nil {
		t.Fatal(err)
	}
	if first.takeBack(); read().Classes != first.table().Classes {
		t.Error("its own half was not taken back")
	}
	third := compileConfig(t, strings.Replace(threeClasses, `"steal"`, `"copy"`, 1))
	third.consumers = k.consumers
	if err := third.Fill(k.maps); err != nil {
		t.Fatal(err)
	}
	if first.takeBack(); !first.isSucceeded() || read() != *third.table() {
		t.Error("the half of another configuration was changed")
	}
}

func (k *kernel) hasConsumer(class string) bool {
	k.t.Helper()
	var open uint32
	if err := k.maps.Lookup(mapConsumers, uint32(k.class(class).slot), &open); err != nil {
		k.t.Fatal(err)
	}
	return open == 1
}

// restart kills the control plane, as by SIGKILL, and starts another one with a config.
func (k *kernel) restart(config string) {
	k.t.Helper()
	k.Intercept = compileConfig(k.t, config)
	g := &running{Intercept: k.Intercept, live: sdk.Live{Maps: k.maps}, half: int(k.half()), ended: make(chan struct{})}
	ctx, end := context.WithCancel(k.t.Context())
	end()
	g.Run(ctx)
}

// A control plane that is killed after other values became active, but before it has started them, does so after its
// restart. Later changes by control messages survive another restart.
func TestKilledAtChange(t *testing.T) {
	k := load(t, chain.TC, chain.Ingress, threeClasses)
	r, c := k.open("ctrl"), k.commander("ctrl")
	expect := func(what string, deadline, watchdog time.Duration) {
		t.Helper()
		if s := r.state; s.Deadline != uint64(deadline) || s.Watchdog != uint64(watchdog) {
			t.Errorf("%s: deadline %d, watchdog %d", what, s.Deadline, s.Watchdog)
		}
	}
	expect("at first", 100*time.Microsecond, 100*time.Millisecond)
	for i := range 3 {
		config, deadline, watchdog := otherClasses, 200*time.Microsecond, time.Second
		if i == 1 {
			config, deadline, watchdog = threeClasses, 100*time.Microsecond, 100*time.Millisecond
		}
		half := k.half()
		if err := k.loaded.SetValues(module(t, compileConfig(t, config))); err != nil || k.half() == half {
			t.Fatalf("half %d: %v", k.half(), err)
		}
		k.restart(config)
		expect("begun late", deadline, watchdog)
		c.send(control64{Op: opDeadline, Value: 5})
		k.run(datagram(8080, "").bytes())
		expect("by a control message", 5, watchdog)
		k.restart(config)
		expect("after a restart", 5, watchdog)
	}
}

var otherClasses = strings.NewReplacer(`"action": "steal", "deadline": "100us"`,
	`"action": "copy", "deadline": "200us", "watchdog": "1s", "maxBytes": 70`,
	`"8000-8079", 8080`, `9090`).Replace(threeClasses)

// Matches and actions of classes change while program, rings, pages and counters stay. Control messages apply to the
// config to which they were sent.
func TestValuesChange(t *testing.T) {
	onHooks(t, threeClasses, func(t *testing.T, k *kernel) {
		r, c := k.open("ctrl"), k.commander("ctrl")
		ctrl := datagram(8080, "1234CTRL"+strings.Repeat(".", 50)).bytes()
		logged, other := datagram(8000, "").bytes(), datagram(9090, "").bytes()
		generation, records := r.state.Generation, uint64(0)
		deliver := func(what string, want verdict, caplen int) {
			t.Helper()
			if got := k.run(ctrl); got != want {
				t.Errorf("%s: %s", what, got)
			}
			rec, frame := r.take()
			if rec == nil || rec.Seq != records || len(frame) != caplen {
				t.Fatalf("%s: record %+v of %d bytes, want number %d of %d", what, rec, len(frame), records, caplen)
			}
			records++
		}
		expect := func(what string, frame []byte, want verdict) {
			t.Helper()
			if got := k.run(frame); got != want {
				t.Errorf("%s: %s", what, got)
			}
		}
		for range 2 { // the second half, and the first one again
			deliver("stolen", dropped, len(ctrl))
			expect("a port that is dropped", logged, dropped)
			expect("a port of the other config", other, passed)
			c.send(control64{Op: opStop}, control64{Op: opDeadline, Value: 5})
			expect("stopped, by the class behind", ctrl, dropped)
			if r.drain() != 0 || r.state.Stopped != 1 || r.state.Deadline != 5 {
				t.Errorf("stopped: %+v", r.state)
			}
			k.change(otherClasses)
			deliver("copied", passed, 70)
			expect("a port of the other config", logged, passed)
			expect("a port that is dropped", other, dropped)
			if s := r.state; s.Generation != generation || !k.hasConsumer("ctrl") || s.Stopped != 0 ||
				s.Deadline != uint64(200*time.Microsecond) || s.Watchdog != uint64(time.Second) {
				t.Errorf("%+v", s)
			}
			k.change(threeClasses)
		}
		// one that is written, but not activated, as when a change fails
		if err := compileConfig(t, otherClasses).Fill(k.maps); err != nil {
			t.Fatal(err)
		}
		deliver("stolen, after a change that failed", dropped, len(ctrl))
		expect("a port that is dropped, after a change that failed", logged, dropped)
		if got := k.report("ctrl").Packets; got != records {
			t.Errorf("%d packets", got)
		}
	})
}
