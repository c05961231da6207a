// SPDX-License-Identifier: Apache-2.0

package coap

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// The kernel follows at most 1,000,000 instructions; 6.1 follows half as many again as later ones.
const maxVerified = 210000

func TestVerifies(t *testing.T) {
	for _, h := range hooks {
		d := load(t, h, casesConfig())
		sdktest.CheckVerified(t, d.loaded.Program, maxVerified)
	}
}

// BenchmarkRequest measures an answered request with checksums, by test runs of one packet each. It subtracts the time
// of the system call, measured with a packet to another port.
func BenchmarkRequest(b *testing.B) {
	for _, h := range hooks {
		for _, duplicates := range []bool{false, true} {
			name := h.name
			if duplicates {
				name += "/duplicates"
			}
			config := casesConfig()
			config["duplicates"] = duplicates
			d := load(b, h, config)
			for kind, request := range map[string][]byte{"4 bytes": temp(), "2.03": temp(Option{ETag, tempETag[:]}),
				"1024 bytes": get(path("long", strings.Repeat("s", 40))...), "passed on": temp(Option{URIQuery, []byte("a=b")})} {
				b.Run(name+"/"+kind, func(b *testing.B) {
					in := frame(client, serverOf(client), request)
					other := frame(client, serverOf(client), request)
					other[37]++ // the port
					var times [2]time.Duration
					for i, f := range [][]byte{other, in} {
						times[i] = time.Duration(math.MaxInt64)
						for range max(b.N, 20000) {
							opts := &ebpf.RunOptions{Data: f}
							start := time.Now()
							if _, err := d.loaded.Program.Run(opts); err != nil {
								b.Fatal(err)
							}
							times[i] = min(times[i], time.Since(start))
						}
					}
					b.ReportMetric(float64(times[1]-times[0]), "ns/request")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}
