// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/bench"
)

// publishedPrefix is the prefix of configs with the published program (published.bpf.c).
const publishedPrefix = "published-"

// publishedKey is a key of its map: a string, padded with zeros.
type publishedKey [16]byte

func keyOf(text string) (k publishedKey) {
	copy(k[:], text)
	return k
}

// attachPublished attaches the published program to the server's interface. In mixed, its user-space part writes the
// limit once a second until the contender is closed.
func (c *contender) attachPublished() error {
	spec, err := bench.Object(files, "published.bpf.o")
	if err != nil {
		return err
	}
	bpf, err := c.load(spec)
	if err != nil {
		return err
	}
	c.state = bpf.Maps["state"]
	for text, value := range map[string]uint32{"port": uint32(c.port()), "cars": 0, "limit": curve(0)} {
		if err := c.state.Put(keyOf(text), value); err != nil {
			return fmt.Errorf("map of the published program: %w", err)
		}
	}
	program := bpf.Programs[strings.ReplaceAll(c.config, "-", "_")]
	if err := errors.Join(c.attachTo(c.place.server, c.place.nic, program), c.attach("", "pass")); err != nil {
		return err
	}
	if c.config == publishedPrefix+"mixed" {
		c.recompute(c.state)
	}
	return nil
}

// recompute is the published user-space part, with a timer of one second.
func (c *contender) recompute(state *ebpf.Map) {
	ticker, stop, stopped := time.NewTicker(time.Second), make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			case <-ticker.C:
			}
			var cars uint32
			err := state.Lookup(keyOf("cars"), &cars)
			if err == nil {
				err = state.Put(keyOf("limit"), curve(cars))
			}
			if err != nil {
				stopped <- err
				return
			}
		}
	}()
	c.Later(func() error {
		ticker.Stop()
		close(stop)
		return <-stopped
	})
}

// curve returns the published limit for the number of cars in range, in km/h, as speed_limit of src/wire.h.
func curve(cars uint32) uint32 {
	switch {
	case cars < 30:
		return 120
	case cars >= 100:
		return 30
	}
	return uint32(math.Round(45*math.Cos(math.Pi/70*float64(cars-30)) + 75))
}
