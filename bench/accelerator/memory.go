// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/sdk"
)

// measureHeld measures the kernel memory of many open connections: just after use, and after they have been idle long
// enough for the accelerator to release it. It also measures the time to open each, and the memory of all tables.
func measureHeld(ctx context.Context, s *serving) ([]bench.Sample, error) {
	if err := s.accelerate(map[string]any{"idle": 10}); err != nil {
		return nil, err
	}
	before, err := kernelMemory()
	if err != nil {
		return nil, err
	}
	var held, idle, tables int64
	r, err := s.whileHeld(ctx, func() (err error) {
		if held, err = kernelMemory(); err != nil {
			return err
		}
		if tables, err = s.usage().Tables(); err != nil {
			return err
		}
		if err = s.awaitRemoval(ctx); err != nil {
			return err
		}
		idle, err = kernelMemory()
		return err
	})
	mib := func(metric string, bytes int64) bench.Sample {
		return bench.P50(metric, "MiB", float64(bytes)/(1<<20))
	}
	samples := []bench.Sample{
		bench.P50("connect", "us", r.Seconds*1e6/float64(r.N)),
		mib("memory", held-before), mib("memory_idle", idle-before),
	}
	if s.kerb != nil {
		samples = append(samples, mib("memory_tables", tables))
	}
	return samples, errors.Join(err, s.accelerate(map[string]any{}))
}

// awaitRemoval waits until all accelerated connections are removed from the map, after thresholds.idle. With
// redirect-all they stay.
func (s *serving) awaitRemoval(ctx context.Context) error {
	if s.kerb == nil || modes[s.config] != "adaptive" {
		return nil
	}
	before, err := s.kerb.counts()
	for deadline := time.Now().Add(s.length.rest); err == nil && time.Now().Before(deadline); {
		if !sdk.Pause(ctx, 500*time.Millisecond) { // the kernel frees memory of closed connections with a delay
			return ctx.Err()
		}
		now, wrong := s.kerb.counts()
		if wrong != nil || now.since(before).refused["idle"] >= uint64(s.length.held) {
			return wrong
		}
	}
	return err
}

// whileHeld runs f while the client holds the connections open.
func (s *serving) whileHeld(ctx context.Context, f func() error) (r result, err error) {
	args := slices.Concat([]string{s.tools.Path("client"), "hold", "24", strconv.Itoa(s.length.held)}, s.target().words())
	cmd, err := s.command(ctx, s.contender.place.client.Namespace, clientSide, args...)
	if err != nil {
		return r, err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return r, err
	}
	holds, err := bench.StartThreads(cmd, 0)
	if err != nil {
		return r, err
	}
	line, _ := holds.Out.ReadBytes('\n')
	err = f()
	in.Close()
	if wrong := cmd.Wait(); wrong != nil {
		return r, fmt.Errorf("client hold: %w: %s", wrong, &holds.Stderr)
	}
	return r, errors.Join(err, json.Unmarshal(line, &r))
}

// kernelMemory returns the size of the slabs for sockets, the kernel's state of sockets in maps, and map elements, in
// bytes. It excludes other slabs, such as those of files, whose size varies with other programs.
func kernelMemory() (int64, error) {
	time.Sleep(time.Second) // memory is freed after a grace period
	text, err := os.ReadFile("/proc/slabinfo")
	if err != nil {
		return 0, err
	}
	var sum int64
	for line := range strings.Lines(string(text)) {
		name, _, _ := strings.Cut(line, " ")
		if name != "TCP" && name != "TCPv6" && name != "sock_inode_cache" && !strings.HasPrefix(name, "kmalloc-") {
			continue
		}
		var pages, slabs int64 // pages of a slab, slabs
		table, data, _ := strings.Cut(line, ": slabdata")
		f := strings.Fields(table) // name, active objects, objects, size, objects of a slab, pages of a slab : tunables ...
		_, err1 := fmt.Sscan(f[min(5, len(f)-1)], &pages)
		_, err2 := fmt.Sscan(data, new(int64), &slabs)
		if err := errors.Join(err1, err2); err != nil {
			return 0, fmt.Errorf("/proc/slabinfo: %s: %w", line, err)
		}
		sum += pages * slabs * int64(os.Getpagesize())
	}
	return sum, nil
}
