// SPDX-License-Identifier: Apache-2.0

package classifier

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

// headers is the length of the Ethernet, IPv4 and UDP headers.
const headers = 14 + 20 + 8

// sizeConfigs are the configs of the loads size/BYTES; plain has no program at the interface.
var sizeConfigs = []string{"plain", "bare", "bare-generic"}

// publishedSizeRound is the time for which frames of a size are sent to each config in a round.
const publishedSizeRound = 10 * time.Second

// sizes measures the loss-free rate of frames of one size, including the Ethernet header, without a model. The frames
// contain no message, since messages have a fixed size.
func (e *experiment) sizes(ctx context.Context, load, bytes string) error {
	frame, err := strconv.Atoi(bytes)
	if err != nil {
		return err
	}
	wantedConfigs := e.wantedConfigs(sizeConfigs)
	e.wasLive = e.wasLive || len(wantedConfigs) > 0
	return e.withBorders(wantedConfigs, func(config string) (*border, error) {
		return openSized(config, frame-headers)
	}, func(borders []*border) error {
		for round := range e.run.Rounds {
			e.run.Progress("%s round %d/%d %s alternating", load, round+1, e.run.Rounds, strings.Join(wantedConfigs, ", "))
			flows := make([]flow, len(borders))
			err := traffic.RunOnCPU(0, func() error { return interleave(ctx, borders, flows, e.sizeLengths()) })
			if err != nil {
				return err
			}
			for i, b := range borders {
				f := &flows[i]
				e.run.Record(b.config, load, bench.P50("lossfree_rate", "1/s", f.rate()),
					bench.P50("data_rate", "Mbit/s", f.rate()*float64(frame)*8/1e6),
					bench.P50("cpu", "us per frame", f.cpu.Seconds()*1e6/float64(f.sent)), bench.Count("lost", f.lost))
				if f.lost > 0 {
					e.run.Invalidate("%s, %s: %d of %d frames were lost", load, b.config, f.lost, f.sent)
				}
			}
		}
		return nil
	})
}

func (e *experiment) sizeLengths() lengths {
	if e.run.Quick {
		return lengths{5 * time.Millisecond, 200 * time.Millisecond}
	}
	l := lengths{20 * time.Millisecond, 2 * time.Second}
	turns := float64(publishedSizeRound) * e.run.Scale * float64(len(sizeConfigs))
	l.round = max(l.round, time.Duration(turns))
	return l
}

// openSized opens a border without the classifier, for datagrams of a size.
func openSized(config string, size int) (*border, error) {
	b := &border{config: config, datagram: size}
	err := b.join("kbcl" + letters[config])
	if err == nil && config != "plain" {
		d, wrong := liveModel("rpl-hello-1s")
		if err = wrong; err == nil {
			err = b.start("1s", "window", d)
		}
	}
	if err == nil {
		err = b.connect()
	}
	return b, b.CloseOn(err)
}

// withBorders opens a border for each config, and closes them when f has returned.
func (e *experiment) withBorders(configs []string, open func(config string) (*border, error),
	f func([]*border) error) (err error) {
	var borders []*border
	defer func() { err = errors.Join(err, bench.CloseAll(borders)) }()
	for _, config := range configs {
		b, err := open(config)
		if err != nil {
			return fmt.Errorf("%s: %w", config, err)
		}
		borders = append(borders, b)
	}
	return f(borders)
}
