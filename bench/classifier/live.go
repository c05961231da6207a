// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/path"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
	"github.com/kerb-edge/kerb/modules/classifier"
	"github.com/kerb-edge/kerb/modules/classifier/inference"
	"github.com/kerb-edge/kerb/modules/classifier/models"
	"github.com/kerb-edge/kerb/sdk/model"
)

// lengths are the duration of a config's turn, and of a round of all turns, in which every window ends.
type lengths struct{ turn, round time.Duration }

func (e *experiment) lengths(window time.Duration) lengths {
	if e.run.Quick {
		return lengths{5 * time.Millisecond, 1100 * time.Millisecond}
	}
	l := lengths{20 * time.Millisecond, max(2*time.Second, window+window/10)}
	if e.run.Scale > 0 {
		turns := float64(publishedRound) * e.run.Scale * float64(len(configs)+len(genericConfigs))
		l.round = max(l.round, time.Duration(turns))
	}
	return l
}

// publishedRound is the published duration of traffic per config.
const publishedRound = time.Minute

// configs returns the configs of live loads.
func (e *experiment) configs() []string {
	all := configs
	if e.run.Scale > 0 {
		all = slices.Concat(configs, genericConfigs)
	}
	return e.wantedConfigs(all)
}

func (e *experiment) wantedConfigs(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(c string) bool { return !e.run.Wants(c) })
}

// flow has the counts of a chain in the turns of a round.
type flow struct {
	rates []float64 // of each turn without loss, in 1/s
	sent  uint64
	lost  uint64
	cpu   time.Duration // of the thread that sends and receives, including the chain
}

// turn sends a batch when the previous one was received, so that buffers cannot overflow. Sender, chain and receiver
// share a CPU; the rate is its capacity.
func (b *border) turn(length time.Duration, f *flow) error {
	runtime.LockOSThread() // for its CPU clock
	defer runtime.UnlockOSThread()
	start, sent := time.Now(), uint64(0)
	before, err := cpuTime(unix.CLOCK_THREAD_CPUTIME_ID)
	if err != nil {
		return err
	}
	lost := uint64(0)
	for time.Since(start) < length {
		n, received, err := b.batch()
		if err != nil {
			return err
		}
		sent += n
		lost += n - min(n, received)
	}
	took := time.Since(start)
	after, err := cpuTime(unix.CLOCK_THREAD_CPUTIME_ID)
	if lost == 0 {
		f.rates = append(f.rates, float64(sent)/took.Seconds())
	}
	f.sent += sent
	f.lost += lost
	f.cpu += after - before
	return err
}

// batch sends one message of each kind from each source, and receives them.
func (b *border) batch() (sent, received uint64, err error) {
	b.sequence++
	for i := range batchLen {
		if b.datagram < datagram {
			break
		}
		b.out.Datagram(i)[sequenceAt] = b.sequence*kinds + byte(i/inference.Sources)
	}
	taken, err := b.out.Send(batchLen)
	if err != nil {
		return 0, 0, fmt.Errorf("send: %w", err)
	}
	b.sent += uint64(taken)
	for received < uint64(taken) {
		n, err := b.in.Receive()
		if err != nil {
			return 0, 0, fmt.Errorf("receive: %w", err)
		}
		if n == 0 {
			break
		}
		received += uint64(n)
	}
	return uint64(taken), received, nil
}

// live measures a model on live frames: the cost of windows, or of an evaluation for each packet, in a chain.
func (e *experiment) live(ctx context.Context, load, window, when string, d *model.Document) error {
	length, err := time.ParseDuration(window)
	if err != nil {
		return err
	}
	e.wasLive = true
	configs := e.configs()
	return e.withBorders(configs, func(config string) (*border, error) {
		return openBorder(config, window, when, d)
	}, func(borders []*border) error {
		for round := range e.run.Rounds {
			e.run.Progress("%s round %d/%d %s alternating", load, round+1, e.run.Rounds, strings.Join(configs, ", "))
			if err := e.round(ctx, load, borders, e.lengths(length)); err != nil {
				return err
			}
		}
		return nil
	})
}

// round gives configs short turns, so that disturbances affect all of them.
func (e *experiment) round(ctx context.Context, load string, borders []*border, l lengths) error {
	flows, control := make([]flow, len(borders)), make([]time.Duration, len(borders))
	for _, b := range borders {
		if kind := b.kind(); kind != "kernel" && kind != "user" {
			continue
		}
		took, err := b.reload()
		if err != nil {
			return fmt.Errorf("%s: %w", b.config, err)
		}
		e.run.Record(b.config, load, bench.P50("load_time", "ms", took.Seconds()*1e3))
	}
	for i, b := range borders {
		used, err := b.node.CPU()
		if err != nil {
			return err
		}
		control[i] = -used
	}
	start := time.Now()
	err := traffic.RunOnCPU(0, func() error { return interleave(ctx, borders, flows, l) })
	if err != nil {
		return err
	}
	took := time.Since(start)
	for i, b := range borders {
		used, err := b.node.CPU()
		if err != nil {
			return err
		}
		e.run.Record(b.config, load, flows[i].samples((control[i]+used).Seconds()/took.Seconds())...)
		memory, err := path.Usage{Agents: []*node.Node{b.node}}.MemorySample()
		if err != nil {
			return err
		}
		e.run.Record(b.config, load, memory)
		if err := e.checkCounters(b, &flows[i], load); err != nil {
			return err
		}
	}
	e.compare(load, borders, flows)
	return nil
}

// compare records ratios to the rate of the same chain without a model in the same round, since rounds differ more than
// configs do.
func (e *experiment) compare(load string, borders []*border, flows []flow) {
	reference := slices.IndexFunc(borders, func(b *border) bool { return b.config == "none" })
	if reference < 0 {
		return
	}
	none := flows[reference].rate()
	for i, b := range borders {
		if none > 0 {
			e.run.Record(b.config, load, bench.P50("lossfree_ratio", "of none", flows[i].rate()/none))
		}
	}
}

// interleave measures the configs in turns, each time starting with another one. The first turns are not counted. On a
// busy machine they may take longer than a round; each config still gets a counted turn.
func interleave(ctx context.Context, borders []*border, flows []flow, l lengths) error {
	n, warm := len(borders), make([]flow, len(borders))
	start := time.Now()
	for cycle := 0; cycle <= 1 || time.Since(start) < l.round; cycle++ {
		for i := range n {
			at := (cycle + i) % n
			f := &flows[at]
			if cycle == 0 {
				f = &warm[at]
			}
			if err := errors.Join(ctx.Err(), borders[at].turn(l.turn, f)); err != nil {
				return fmt.Errorf("%s: %w", borders[at].config, err)
			}
		}
	}
	for i := range n {
		flows[i].lost += warm[i].lost
	}
	return nil
}

// rate returns the upper quartile of the turns without loss, or 0 without such a turn. In slower turns another task
// used the CPU.
func (f *flow) rate() float64 {
	if len(f.rates) == 0 {
		return 0
	}
	return bench.Percentile(f.rates, 75)
}

// samples returns the samples of a round; control is in CPUs.
func (f *flow) samples(control float64) []bench.Sample {
	return []bench.Sample{
		bench.P50("lossfree_rate", "1/s", f.rate()),
		bench.P50("cpu", "us per frame", f.cpu.Seconds()*1e6/float64(f.sent)),
		bench.P50("control_cpu", "ms per s", control*1e3),
		bench.Count("lost", f.lost),
	}
}

// checkCounters invalidates the run if a frame was lost, or the classifier's counters do not match the config.
func (e *experiment) checkCounters(b *border, f *flow, load string) error {
	if f.lost > 0 {
		e.run.Invalidate("%s, %s: %d of %d frames were lost", load, b.config, f.lost, f.sent)
	}
	if b.kind() == "bare" {
		return nil
	}
	n, err := b.counters()
	// it reads windows periodically
	for tries := 0; err == nil && n["evaluated"] == 0 && b.kind() == "user" && tries < 600; tries++ {
		time.Sleep(50 * time.Millisecond)
		n, err = b.counters()
	}
	if err != nil {
		return err
	}
	if n["messages"] != b.sent {
		e.run.Invalidate("%s, %s: the classifier counted %d of %d messages", load, b.config, n["messages"], b.sent)
	}
	if judged := n["evaluated"] > 0; judged != (b.config != "none") && !e.isTooShort(load) {
		e.run.Invalidate("%s, %s: the model was evaluated %d times", load, b.config, n["evaluated"])
	}
	return nil
}

// isTooShort reports whether a round may end before the first window: rounds of a quick run are shorter than windows of
// 5 and 10 s.
func (e *experiment) isTooShort(load string) bool {
	return e.run.Quick && (load == "rpl/5s" || load == "rpl/10s")
}

// perPacket makes the classifier evaluate the model for each packet, with windows of 1 s.
func (e *experiment) perPacket(ctx context.Context, load, name string) error {
	d, err := liveModel(name)
	if err != nil {
		return err
	}
	return e.live(ctx, load, "1s", "packet", d)
}

// liveModel returns a shipped model, or a perceptron with random weights, whose inputs are features of the extractor.
func liveModel(name string) (*model.Document, error) {
	shape, isShape := strings.CutPrefix(name, "mlp-")
	if !isShape {
		text, err := models.Files.ReadFile(name + ".json")
		if err != nil {
			return nil, err
		}
		return model.Parse(text)
	}
	widths, err := parseWidths(shape)
	if err != nil {
		return nil, err
	}
	d, err := network(model.Int8, widths)
	if err == nil {
		d.Features = classifier.Features["rpl"][:widths[0]]
	}
	return d, err
}
