// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/dataplane"
)

// BenchmarkLoad measures load_time of `kerb bench chain`, with the CPU time of all threads of the process: go test -run
// - -bench Load ./bench/chain
func BenchmarkLoad(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	for _, hook := range []string{"xdp", "tc"} {
		for _, n := range []int{1, 8, 16} {
			b.Run(fmt.Sprintf("%s/%d", hook, n), func(b *testing.B) { benchmarkLoad(b, hook, n) })
		}
	}
}

func benchmarkLoad(b *testing.B, hook string, n int) {
	b.ReportAllocs()
	var took int64
	for b.Loop() {
		before := cpuTime(b)
		ch, err := withKerb(dataplane.Load, ipv4)(hook, n)
		if err != nil {
			b.Fatal(err)
		}
		took += cpuTime(b) - before
		b.StopTimer()
		if err := ch.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(took)/float64(b.N), "cpu-ns/op")
}

// cpuTime returns the CPU time of the process in ns. The share of the kernel is less accurate.
func cpuTime(b *testing.B) int64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}
