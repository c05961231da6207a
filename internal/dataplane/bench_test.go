// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"testing"
)

// BenchmarkChain prints what a packet costs in chains of trivial modules: go test -bench Chain ./internal/dataplane
func BenchmarkChain(b *testing.B) {
	packet := udpPacket(b, 7, make([]byte, 22))
	for _, s := range sides[:2] {
		for _, n := range []int{0, 1, 2, 4, 8, 16} {
			b.Run(fmt.Sprintf("%s/%d", s.side, n), func(b *testing.B) {
				var mods []Module
				for i := range n {
					mods = append(mods, testModule(b, "pass", fmt.Sprintf("m%d", i), nil))
				}
				l := load(b, s.side, s.dir, mods...)
				for b.Loop() {
					_, t, err := l.Program.Benchmark(packet, 1_000_000, nil)
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(t.Nanoseconds()), "ns/packet")
				}
			})
		}
	}
}
