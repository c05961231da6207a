// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/modules/classifier/inference"
	"github.com/kerb-edge/kerb/sdk/model"
)

// TestExperiment runs a load of each kind. It checks results, and that the figures of times exist.
func TestExperiment(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF")
	}
	loads := []string{"mlp-4-3-2-1/int8", "mlp-16-32-16-2/q15", "forest-10x10", "rpl/1s"}
	r := bench.NewRun(bench.Experiment{Name: "classifier", Baseline: "user"}, true, 1, loads, io.Discard)
	if err := run(t.Context(), r); errors.Is(err, inference.ErrNotBuilt) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	for _, load := range loads {
		for _, config := range []string{"kernel", "user", "user-best"} {
			if c, ok := r.Report().Find(config, load, "inference", "p50"); !ok || c.Value <= 0 {
				t.Errorf("%s, %s: %+v", config, load, c)
			}
		}
	}
	for metric, least := range map[string]float64{"accuracy": 0.99, "agreement": 1 - 1.0/20_000, "accuracy-int8": 0.98} {
		if c, ok := r.Report().Find("kernel", "rpl/1s", metric, "p50"); !ok || c.Value < least {
			t.Errorf("%s: %+v, at least %v", metric, c, least)
		}
	}
	for _, config := range configs {
		for _, metric := range []string{"lossfree_rate", "lossfree_ratio", "cpu", "memory"} {
			if c, ok := r.Report().Find(config, "rpl/1s", metric, "p50"); !ok || !(c.Value > 0) {
				t.Errorf("%s of %s: %+v", metric, config, c)
			}
		}
	}
	for _, config := range []string{"kernel", "user"} {
		if c, ok := r.Report().Find(config, "rpl/1s", "load_time", "p50"); !ok || !(c.Value > 0) {
			t.Errorf("load time of %s: %+v", config, c)
		}
	}
	if why := r.Report().Unsound; len(why) > 0 {
		t.Errorf("%q", why)
	}
	if c, ok := r.Report().Find("rule: dis > 0", "rpl/1s", "accuracy", "p50"); !ok || c.Value < 0.99 {
		t.Errorf("rule: %+v", c)
	}
}

// The measured models are valid, use the declared features, and decide for both classes.
func TestModels(t *testing.T) {
	small, err := network(model.Int8, []int{16, 32, 16, 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []*model.Document{small, forest(10, 10)} {
		if err := d.Check(); err != nil {
			t.Fatal(err)
		}
		p, err := d.Pack(d.Features)
		if err != nil {
			t.Fatal(err)
		}
		r, classes := rand.New(rand.NewPCG(5, 6)), map[uint32]int{}
		for range 2000 {
			classes[p.Infer(features(r, len(d.Features))).Class]++
		}
		if len(classes) < 2 {
			t.Errorf("%s decides %v", d.Kind, classes)
		}
	}
}

func TestPublishedWindows(t *testing.T) {
	for window, want := range map[string]int{"1s": 1920, "5s": 1047, "10s": 572} {
		rows, labels, err := published(window, []string{"dis", "dio"})
		if err != nil || len(rows) != want || len(labels) != want {
			t.Errorf("%s: %d rows, %d labels, %v; want %d", window, len(rows), len(labels), err, want)
		}
	}
}
