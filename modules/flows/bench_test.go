// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"math"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/internal/pkttest"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// BenchmarkPacket reports the fastest of b.N rounds with packets of a known flow, with the module and without it, since
// other load only slows rounds down.
func BenchmarkPacket(b *testing.B) {
	sdktest.NeedRoot(b)
	const repeat = 100_000
	own := pkttest.ModuleOf(pkgstest.Package(b))
	compiled := sdktest.Compile[sdk.Compiled](b, Control(), `{}`)
	own.Settings, own.Fill = compiled.Settings(), compiled.Fill
	pass := pkttest.ModuleOf(pkgstest.PackageIn(b, "../../internal/dataplane/testdata/pass"))
	for name, module := range map[string]dataplane.Module{"flows": own, "without": pass} {
		for proto, e := range map[string]event{"tcp": tcp(egress, "A", 1, 1, 0),
			"udp": {direction: egress, proto: "udp", local: client, remote: server}} {
			b.Run(name+"/"+proto, func(b *testing.B) {
				l, err := dataplane.Load(chain.OnTCIngress, chain.Egress, module)
				sdktest.Explain(b, err)
				b.Cleanup(l.Close)
				frame, best := e.frame(b), time.Duration(math.MaxInt64)
				for range b.N {
					start := time.Now()
					if _, err := l.Program.Run(&ebpf.RunOptions{Data: frame, Repeat: repeat}); err != nil {
						b.Fatal(err)
					}
					best = min(best, time.Since(start))
				}
				b.ReportMetric(float64(best.Nanoseconds())/repeat, "ns/packet")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
