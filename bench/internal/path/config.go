// SPDX-License-Identifier: Apache-2.0

package path

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/kerb-edge/kerb/bench"
)

// Config is a path between client and server, for RunLong.
type Config struct {
	Name string
	// Open returns the path, and a closer for what it has started.
	Open func() (*Path, io.Closer, error)
}

// Prefixes of loads that need more than Measure: rising rates up to the bottleneck, and CPU and memory over time. The
// place of the server follows.
const (
	sweepPrefix    = "sweep/"
	timelinePrefix = "timeline/"
)

// IsLong reports whether RunLong measures a load.
func IsLong(load string) bool {
	return strings.HasPrefix(load, sweepPrefix) || strings.HasPrefix(load, timelinePrefix)
}

// LongLoads returns the long loads of a place.
func LongLoads(place string) []string { return []string{sweepPrefix + place, timelinePrefix + place} }

type openConfig struct {
	config string
	path   *Path
}

// RunLong measures a load of LongLoads with several configs.
func RunLong(ctx context.Context, r *bench.Run, load string, ways []Config) (err error) {
	var opened bench.Closers
	defer func() { err = errors.Join(err, opened.Close()) }()
	var open []openConfig
	for _, w := range ways {
		if !r.Wants(w.Name) {
			continue
		}
		p, closer, err := w.Open()
		if r.LeftOut(w.Name, err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", w.Name, err)
		}
		opened.Later(closer.Close)
		open = append(open, openConfig{w.Name, p})
	}
	number := uint64(0)
	for range r.Rounds {
		if strings.HasPrefix(load, sweepPrefix) {
			err = sweep(ctx, r, load, open, &number)
		} else {
			err = timelines(ctx, r, load, open)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
