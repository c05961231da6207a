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

// Way is a config that leads from a client to a server, for the loads of Long.
type Way struct {
	Config string
	// Open returns the path and what ends the way.
	Open func() (*Path, io.Closer, error)
}

// The loads of these names need more than Measure: rising rates until a way is at its end, and CPU and memory over
// time. Where the server is follows.
const (
	sweepPrefix    = "sweep/"
	timelinePrefix = "timeline/"
)

// IsLong reports whether a load is one of RunLong.
func IsLong(load string) bool {
	return strings.HasPrefix(load, sweepPrefix) || strings.HasPrefix(load, timelinePrefix)
}

// LongLoads are those of a place.
func LongLoads(place string) []string { return []string{sweepPrefix + place, timelinePrefix + place} }

type openWay struct {
	config string
	path   *Path
}

// RunLong measures a load of LongLoads.
func RunLong(ctx context.Context, r *bench.Run, load string, ways []Way) (err error) {
	var opened bench.Closers
	defer func() { err = errors.Join(err, opened.Close()) }()
	var open []openWay
	for _, w := range ways {
		if !r.Wants(w.Config) {
			continue
		}
		p, closer, err := w.Open()
		if r.LeftOut(w.Config, err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", w.Config, err)
		}
		opened.Later(closer.Close)
		open = append(open, openWay{w.Config, p})
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
