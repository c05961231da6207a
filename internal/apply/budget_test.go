// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/apierrors"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

func costs(ns float64, memory int64) chain.Cost {
	return chain.Cost{Memory: memory, Latency: []chain.Latency{{Hook: chain.TC, Direction: chain.Egress,
		Packets: []chain.PacketCost{{Kind: "quick", Median: 1}, {Kind: "slow", Median: 10 * ns, Least: ns}}}}}
}

func budgetOf(text string) v1.Budget {
	latency, memory, _ := strings.Cut(text, " ")
	return v1.Budget{Latency: latency, Memory: memory}
}

func TestExceeded(t *testing.T) {
	took := func(ns float64, memory int64) Measured { return Measured{Cost: costs(ns, memory)} }
	for _, c := range []struct {
		name          string
		own, promised string
		m             Measured
		reason        string
		refused       bool
	}{
		{"within", "100ns 2Ki", "", took(100, 2048), "Measured", false},
		{"the operator's latency", "100ns 2Ki", "", took(101, 1), "LatencyExceeded", true},
		{"the operator's memory", "100ns 2Ki", "", took(1, 2049), "MemoryExceeded", true},
		{"the package's latency", "", "100ns 2Ki", took(101, 1), "LatencyExceeded", false},
		{"the package's memory", "", "100ns 2Ki", took(1, 2049), "MemoryExceeded", false},
		{"the operator allows more", "1us 4Ki", "100ns 2Ki", took(101, 2049), "Measured", false},
		{"not measurable", "100ns 2Ki", "", Measured{Err: chain.ErrNotMeasured}, "NotMeasured", false},
		{"sockets, with a limit of memory", " 2Ki", "", Measured{Err: chain.ErrNotPackets}, "MemoryMeasured", false},
	} {
		l := LimitsOf(budgetOf(c.own), pkgs.Budget(budgetOf(c.promised)))
		if e, _ := l.Exceeded(c.m); e.refused != c.refused {
			t.Errorf("%s: refused %t (%s), want %t", c.name, e.refused, e.Text, c.refused)
		}
		if got := l.Conditions(c.m, true); len(got) != 1 || got[0].Reason != c.reason {
			t.Errorf("%s: %+v, want %s", c.name, got, c.reason)
		}
	}
	if got := LimitsOf(v1.Budget{}, pkgs.Budget{}).Conditions(took(1, 1), true); len(got) != 0 {
		t.Errorf("without a budget: %+v", got)
	}
}

// meter measures in turn what it is given.
func meter(key string, limits Limits, turns ...chain.Cost) (Candidate, *atomic.Int64) {
	n := new(atomic.Int64)
	return Candidate{Module: "m", Key: key, Limits: limits, Measure: func() (chain.Cost, error) {
		return turns[min(int(n.Add(1)), len(turns))-1], nil
	}}, n
}

func TestCheck(t *testing.T) {
	operator, promised := LimitsOf(budgetOf("100ns"), pkgs.Budget{}), LimitsOf(v1.Budget{}, pkgs.Budget{Latency: "100ns"})
	good, bad := costs(50, 1), costs(200, 1)
	for _, c := range []struct {
		name    string
		limits  Limits
		turns   []chain.Cost
		refused bool
		n       int // measurements
		known   bool
	}{
		{"within", operator, []chain.Cost{good}, false, 1, true},
		{"a disturbed measurement", operator, []chain.Cost{bad, good}, false, 2, true},
		{"exceeded twice", operator, []chain.Cost{bad, bad}, true, 2, false},
		{"more than the package promises", promised, []chain.Cost{bad}, false, 1, true},
	} {
		b := NewBudgets(slog.New(slog.DiscardHandler))
		module, n := meter("k", c.limits, c.turns...)
		err := b.Check(module)
		var invalid *apierrors.Invalid
		refused := errors.As(err, &invalid) && invalid.Field == "spec.budget.latency"
		if refused != c.refused || int(n.Load()) != c.n {
			t.Errorf("%s: %d measurements, %v", c.name, n.Load(), err)
		}
		if _, known := b.Get("k"); known != c.known {
			t.Errorf("%s: the cost is known: %t", c.name, known)
		}
		if err := b.Check(module); c.known && (err != nil || int(n.Load()) != c.n) {
			t.Errorf("%s: checked again: %d measurements, %v", c.name, n.Load(), err)
		}
	}
}

// What runs is measured once, and forgotten when it no longer runs.
func TestMeasuresWhatRuns(t *testing.T) {
	b := NewBudgets(slog.New(slog.DiscardHandler))
	one, ones := meter("one", Limits{}, costs(1, 1))
	two, twos := meter("two", Limits{}, costs(2, 2))
	ctx, cancel := context.WithCancel(t.Context())
	lists := [][]Candidate{{one, two}, {two}}
	round := 0
	b.Poke()
	b.Run(ctx, func() []Candidate {
		defer func() { round++ }()
		if round == 1 {
			cancel()
		}
		return lists[round]
	}, func(string) { b.Poke() })
	if ones.Load() != 1 || twos.Load() != 1 {
		t.Errorf("measured %d and %d times", ones.Load(), twos.Load())
	}
	_, first := b.Get("one")
	_, second := b.Get("two")
	if first || !second {
		t.Errorf("known: %t, %t", first, second)
	}
}

// Modules are measured when no change was made for a while, and not between changes.
func TestMeasuresWhenCalm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudgets(slog.New(slog.DiscardHandler))
		module, n := meter("m", Limits{}, costs(1, 1))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go b.Run(ctx, func() []Candidate { return []Candidate{module} }, func(string) {})
		for range 10 {
			b.Poke()
			time.Sleep(calm - time.Millisecond) // in the bubble's time
			if synctest.Wait(); n.Load() != 0 {
				t.Fatal("measured between changes")
			}
		}
		time.Sleep(time.Millisecond) // in the bubble's time
		if synctest.Wait(); n.Load() != 1 {
			t.Errorf("%d measurements, want 1", n.Load())
		}
	})
}

// A node whose changes never pause for long is measured, too.
func TestMeasuresDespiteChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudgets(slog.New(slog.DiscardHandler))
		module, n := meter("m", Limits{}, costs(1, 1))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go b.Run(ctx, func() []Candidate { return []Candidate{module} }, func(string) {})
		for range 150 {
			b.Poke()
			time.Sleep(calm / 5) // in the bubble's time
		}
		if synctest.Wait(); n.Load() != 1 {
			t.Errorf("%d measurements in 15 s of changes, want 1", n.Load())
		}
	})
}

func TestChainCost(t *testing.T) {
	c := chain.Spec{Side: chain.OnTCIngress, Direction: chain.Egress, Members: []chain.Member{{Name: "a"}, {Name: "b"}}}
	known := map[string]Measured{"a": {Cost: costs(1.5, 1)}}
	of := func(module string) Measured { return known[module] }
	if got := ChainCost(c, of); got != nil {
		t.Errorf("one module is not measured: %v", *got)
	}
	known["b"] = Measured{Cost: costs(2, 1)}
	if got := ChainCost(c, of); got == nil || *got != 35 {
		t.Errorf("%v ns, want 35", got)
	}
	for name := range known { // noise can make the cost of a cheap module 0
		known[name].Latency[0].Packets = []chain.PacketCost{{Kind: "quick"}}
	}
	if got := ChainCost(c, of); got == nil || *got != 0 {
		t.Errorf("modules that cost nothing: %v", got)
	}
	c.Direction = chain.Ingress
	if got := ChainCost(c, of); got != nil {
		t.Errorf("another direction: %v", *got)
	}
}

func TestAwaitUpgrades(t *testing.T) {
	var started []string
	upgrade := func(module string, err error) Upgrade {
		return Upgrade{Module: module, From: "1.0.0", To: "2.0.0",
			Start: func() error { started = append(started, module); return nil },
			AwaitHealthy: func(ctx context.Context) error {
				if _, limited := ctx.Deadline(); !limited {
					t.Error("without a limit")
				}
				return err
			}}
	}
	if err := AwaitUpgrades(t.Context(), []Upgrade{upgrade("m", nil)}); err != nil ||
		!slices.Equal(started, []string{"m"}) {
		t.Errorf("started %v: %v", started, err)
	}
	err := AwaitUpgrades(t.Context(), []Upgrade{upgrade("m", errors.New("no backend"))})
	var conflict *apierrors.Conflict
	if !errors.As(err, &conflict) || !strings.Contains(err.Error(), "version 2.0.0 was rolled back to 1.0.0") ||
		!strings.Contains(err.Error(), "no backend") {
		t.Errorf("unhealthy: %v", err)
	}
}
