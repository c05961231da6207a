// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"io/fs"
	"strconv"
	"strings"

	"github.com/kerb-edge/kerb/bench"
)

// busy is the utilisation, in %, of the CPUs of the client and of the servers. If only one of them is near 100, it is
// the bottleneck.
type busy struct{ client, server float64 }

func (b *busy) samples() []bench.Sample {
	if b == nil {
		return nil
	}
	return []bench.Sample{bench.P50("client_busy", "%", b.client), bench.P50("server_busy", "%", b.server)}
}

// cpuTime has the times of one CPU since boot, in clock ticks.
type cpuTime struct{ idle, all float64 }

// readCPUs returns the times by CPU number. Columns: user, nice, system, idle, iowait, irq, softirq, steal (proc(5)).
func readCPUs(root fs.FS) map[int]cpuTime {
	all := map[int]cpuTime{}
	text, _ := fs.ReadFile(root, "proc/stat") // without it the map is empty
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 9 || !strings.HasPrefix(fields[0], "cpu") {
			continue
		}
		cpu, err := strconv.Atoi(fields[0][len("cpu"):])
		if err != nil {
			continue // the sum of all CPUs
		}
		var t cpuTime
		for i, field := range fields[1:9] {
			ticks, _ := strconv.ParseFloat(field, 64)
			t.all += ticks
			if i == 3 || i == 4 {
				t.idle += ticks
			}
		}
		all[cpu] = t
	}
	return all
}

func (t *tools) busySince(before, after map[int]cpuTime) *busy {
	share := func(cpus []int) float64 {
		var idle, all float64
		for _, cpu := range cpus {
			idle += after[cpu].idle - before[cpu].idle
			all += after[cpu].all - before[cpu].all
		}
		if all <= 0 {
			return 0
		}
		return 100 * (1 - idle/all)
	}
	return &busy{client: share(t.clients), server: share(t.others)}
}
