// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/kerb-edge/kerb/bench"
)

// hold measures what many connections take of the kernel's memory while they are open, and how long each takes to open.
func hold(ctx context.Context, s *serving) ([]bench.Sample, error) {
	before, err := kernelMemory()
	if err != nil {
		return nil, err
	}
	var held int64
	r, err := s.holding(ctx, func() (err error) { held, err = kernelMemory(); return err })
	return []bench.Sample{
		{Metric: "connect", Stat: "p50", Unit: "us", Value: r.Seconds * 1e6 / float64(r.N)},
		{Metric: "memory", Stat: "p50", Unit: "MiB", Value: float64(held-before) / (1 << 20)},
	}, err
}

// holding runs f while the connections are open.
func (s *serving) holding(ctx context.Context, f func() error) (r result, err error) {
	args := slices.Concat([]string{s.tools.path("client"), "hold", "24", strconv.Itoa(s.length.held)}, s.target())
	cmd, err := s.command(ctx, s.contender.place.client.Namespace, clientSide, args...)
	if err != nil {
		return r, err
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return r, err
	}
	line, _ := bufio.NewReader(out).ReadBytes('\n')
	err = f()
	in.Close()
	if wrong := cmd.Wait(); wrong != nil {
		return r, fmt.Errorf("client hold: %w: %s", wrong, &stderr)
	}
	return r, errors.Join(err, json.Unmarshal(line, &r))
}

// kernelMemory is what the kernel has allocated for itself, in bytes; others on the machine make it swing.
func kernelMemory() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	var sum int64
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if !slices.Contains([]string{"Slab:", "Percpu:", "VmallocUsed:"}, f[0]) {
			continue
		}
		kib, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/meminfo: %w", err)
		}
		sum += kib << 10
	}
	return sum, nil
}
