// SPDX-License-Identifier: Apache-2.0

package bpftest

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

const repeats = 1_000_000

// BenchmarkHead gives the nanoseconds per packet of a program that only
// parses, above those of an empty program. Each is the best of several runs.
func BenchmarkHead(b *testing.B) {
	for _, hook := range Hooks {
		coll := Load(b, Compile(b, "testdata/parse.bpf.c", hook))
		for name, frame := range benchFrames() {
			b.Run(string(hook)+"/"+name, func(b *testing.B) {
				best, empty := time.Hour, time.Hour
				for range max(b.N, 15) {
					empty = min(empty, duration(b, coll.Programs["empty"], frame))
					best = min(best, duration(b, coll.Programs["cost"], frame))
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(empty.Nanoseconds()), "ns-empty")
				b.ReportMetric(float64(best.Nanoseconds()), "ns-head")
			})
		}
	}
}

func duration(b *testing.B, prog *ebpf.Program, frame []byte) time.Duration {
	_, perPacket, err := prog.Benchmark(frame, repeats, func() {})
	if err != nil {
		b.Fatal(err)
	}
	return perPacket
}

func benchFrames() map[string][]byte {
	udp := []byte{0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1,
		10, 0, 0, 2, 0, 1, 0, 2, 0, 26, 0, 0}
	udp = append(udp, make([]byte, 18)...)
	tcp := []byte{0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10,
		0, 0, 2, 0, 1, 0, 2, 0, 26, 0, 0, 0, 0, 0, 0, 0x50, 0}
	tcp = append(tcp, make([]byte, 12)...)
	six := []byte{0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 17, 64}
	six = append(six, make([]byte, 32)...)
	six = append(six, 0, 1, 0, 2, 0, 24, 0, 0)
	six = append(six, make([]byte, 16)...)
	return map[string][]byte{"udp4": udp, "tcp4": tcp, "udp6": six}
}
