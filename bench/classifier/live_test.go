// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/benchtest"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
	"github.com/kerb-edge/kerb/modules/classifier/extract"
	"github.com/kerb-edge/kerb/modules/classifier/inference"
)

func TestMain(m *testing.M) { os.Exit(benchtest.Main(m)) }

// The extractor's Go implementation finds all kinds and sources in the sent frames.
func TestFrames(t *testing.T) {
	buf := make([]byte, datagram)
	for kind, want := range []int{extract.DIS, extract.DIO, extract.DAO, extract.Other} {
		ids := map[uint64]bool{}
		for source := range inference.Sources {
			clear(buf)
			put(buf, source, kind, 77)
			frame := buf[zepHeader : zepHeader+int(buf[zepHeader-1])-fcsLen]
			if len(frame) > frameMax {
				t.Errorf("kind %d is %d bytes long", kind, len(frame))
			}
			f, outcome := extract.ParseFrame(frame)
			if outcome != extract.Message || f.Kind != want || f.Seq != 77 {
				t.Errorf("kind %d of source %d: %+v, %d", kind, source, f, outcome)
			}
			ids[f.ID] = true
		}
		if len(ids) != inference.Sources {
			t.Errorf("kind %d has %d sources", kind, len(ids))
		}
	}
}

func open(t *testing.T, config, when string) (*experiment, *border) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF and network namespaces")
	}
	d, err := liveModel("rpl-hello-1s")
	if err != nil {
		t.Fatal(err)
	}
	b, err := openBorder(config, "1s", when, d)
	if errors.Is(err, bench.ErrNotBuilt) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return &experiment{run: bench.NewRun(bench.Experiment{}, true, 1, nil, io.Discard)}, b
}

// A run is valid if the classifier counted all frames and evaluated its model. Frames that are lost, not counted or not
// evaluated invalidate it.
func TestAccount(t *testing.T) {
	e, b := open(t, "kernel", "packet")
	var f flow
	if err := b.turn(20*time.Millisecond, &f); err != nil {
		t.Fatal(err)
	}
	if f.sent == 0 || f.sent%batchLen != 0 || f.lost != 0 || len(f.rates) != 1 || !(f.rate() > 0) || f.cpu <= 0 {
		t.Errorf("%+v", f)
	}
	for _, step := range []struct {
		change func()
		want   string // the reason for an invalid run; empty for a valid one
	}{
		{func() {}, ""},
		{func() { b.sent++ }, "the classifier counted"},
		{func() { b.sent-- }, ""},
		{func() { b.config = "none" }, "the model was evaluated"},
		{func() { b.config = "kernel"; f.lost = 3 }, "3 of"},
	} {
		step.change()
		before := len(e.run.Report().Unsound)
		if err := e.checkCounters(b, &f, "load"); err != nil {
			t.Fatal(err)
		}
		found := strings.Join(e.run.Report().Unsound[before:], "; ")
		if (found == "") != (step.want == "") || !strings.Contains(found, step.want) {
			t.Errorf("%q, want %q", found, step.want)
		}
	}
}

// Frames that do not arrive count as lost, and their turn has no rate.
func TestLost(t *testing.T) {
	_, b := open(t, "bare", "window")
	err := b.network.Do(func() (err error) {
		// no host has this address
		b.out, err = traffic.NewSender(netip.MustParseAddrPort("198.51.100.1:17754"), datagram, batchLen)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer b.out.Close()
	var f flow
	if err := b.turn(time.Millisecond, &f); err != nil || f.sent == 0 || f.lost != f.sent || f.rate() != 0 {
		t.Errorf("%+v, %v", f, err)
	}
}

// A round that ends before a turn counts still has one turn of each config.
func TestShortRound(t *testing.T) {
	_, b := open(t, "bare", "window")
	flows := make([]flow, 1)
	err := interleave(t.Context(), []*border{b}, flows, lengths{time.Millisecond, 0})
	if err != nil || flows[0].sent == 0 {
		t.Errorf("%+v, %v", flows, err)
	}
}

// Each new version is evaluated after the agent has accepted it.
func TestChangeModel(t *testing.T) {
	_, b := open(t, "user", "packet")
	before := b.version
	took, err := b.changeModel(t.Context(), 3)
	version, err2 := b.modelVersion()
	if err != nil || err2 != nil || len(took) != 3 || version != before+3 {
		t.Errorf("version %d after %d, %v: %v, %v", version, before, took, err, err2)
	}
}

// Frames of all sizes arrive without a program and with one, also those that are too small for a message.
func TestSizes(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for BPF and network namespaces")
	}
	e := &experiment{run: bench.NewRun(bench.Experiment{}, true, 1, nil, io.Discard)}
	for _, size := range []string{"64", "1500"} {
		if err := e.sizes(t.Context(), "size/"+size, size); errors.Is(err, bench.ErrNotBuilt) {
			t.Skip(err)
		} else if err != nil {
			t.Fatal(err)
		}
		for _, config := range sizeConfigs {
			if c, ok := e.run.Report().Find(config, "size/"+size, "data_rate", "p50"); !ok || !(c.Value > 0) {
				t.Errorf("%s of %s bytes: %+v", config, size, c)
			}
		}
	}
	if why := e.run.Report().Unsound; len(why) > 0 {
		t.Errorf("%q", why)
	}
}

// Each sample of the time in softirqs is a fraction of the CPU, and frames arrive at the requested rate.
func TestSoftirqs(t *testing.T) {
	e, b := open(t, "kernel", "window")
	if err := e.softirqRound(t.Context(), "softirq/1s", []*border{b}, 0); err != nil {
		t.Fatal(err)
	}
	r := e.run.Report()
	share, ok := r.Find("kernel", "softirq/1s", "softirq_share", "p50")
	if !ok || share.Value <= 0 || share.Value > 110 || len(r.Series) != 1 || len(r.Series[0].All()) < 2 {
		t.Errorf("%+v, %+v", share, r.Series)
	}
	if rate, ok := r.Find("kernel", "softirq/1s", "rate", "p50"); !ok || rate.Value <= 0 || len(r.Unsound) > 0 {
		t.Errorf("%+v, %q", rate, r.Unsound)
	}
}
