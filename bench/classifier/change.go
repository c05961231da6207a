// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

// Changes of the model per round.
const (
	changes      = 100
	changesQuick = 20
)

// change replaces a model, which is evaluated for each packet, through the agent at the maximum rate under traffic.
func (e *experiment) change(ctx context.Context, load, name string) error {
	d, err := liveModel(name)
	if err != nil {
		return err
	}
	b, err := openBorder("kernel", "1s", "packet", d)
	if err != nil {
		return err
	}
	err = e.run.Interleave(ctx, load,
		bench.Trial{Config: "kernel", Measure: func(ctx context.Context) ([]bench.Sample, error) {
			return e.changes(ctx, b, load)
		}})
	return errors.Join(err, b.Close())
}

// changes sends frames from a separate thread while models are replaced. The counters reveal frames that are lost or
// not evaluated.
func (e *experiment) changes(ctx context.Context, b *border, load string) ([]bench.Sample, error) {
	wantedConfigs := changes
	if e.run.Quick {
		wantedConfigs = changesQuick
	}
	var f flow
	var stop atomic.Bool
	flowing := make(chan error, 1)
	go func() {
		flowing <- traffic.RunOnCPU(0, func() (err error) {
			for err == nil && !stop.Load() {
				err = b.turn(time.Millisecond, &f)
			}
			return err
		})
	}()
	took, err := b.changeModel(ctx, wantedConfigs)
	stop.Store(true)
	if err := errors.Join(err, <-flowing); err != nil {
		return nil, err
	}
	return []bench.Sample{
		bench.Count("replacements", uint64(wantedConfigs)),
		bench.P50("swap_time", "ms", bench.Median(took)),
		bench.Count("sent", f.sent),
		bench.P50("lossfree_rate", "1/s", f.rate()),
		bench.Count("lost", f.lost),
	}, e.checkCounters(b, &f, load)
}

// changeModel applies one version after the other, and returns the time in ms until each was in use.
func (b *border) changeModel(ctx context.Context, n int) (took []float64, err error) {
	document := map[string]any{}
	if err := json.Unmarshal([]byte(b.model.Spec.Document), &document); err != nil {
		return nil, err
	}
	for range n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b.version++
		document["version"] = b.version
		text, err := json.Marshal(document)
		if err != nil {
			return nil, err
		}
		b.model.Spec.Document = string(text)
		start := time.Now()
		if err := b.node.Put("/v1/models/"+modelName, b.model); err != nil {
			return nil, fmt.Errorf("version %d: %w", b.version, err)
		}
		if err := b.awaitModel(); err != nil {
			return nil, err
		}
		took = append(took, time.Since(start).Seconds()*1e3)
	}
	return took, nil
}
