// SPDX-License-Identifier: Apache-2.0

package sdktest_test

import (
	"net/netip"
	"testing"

	"github.com/kerb-edge/kerb/modules/counter"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// The control plane of a module uses the same maps as its data plane, in both directions and on both hooks.
func TestControlPlaneSeesPackets(t *testing.T) {
	for _, hook := range []string{"tc", "xdp"} {
		t.Run(hook, func(t *testing.T) {
			m := sdktest.Load(t, sdktest.Options{Dir: "../../modules/counter", Hook: hook, Control: counter.Control()})
			frame := sdktest.Frame(t, sdktest.Fields{Src: netip.MustParseAddr("192.0.2.1"),
				Dst: netip.MustParseAddr("192.0.2.2"),
				UDP: &sdktest.Ports{Src: 1, Dst: 2}})
			for _, direction := range []string{"ingress", "egress", "ingress"} {
				if r := m.Run(direction, frame); r.Verdict != "next" || string(r.Packet) != string(frame) {
					t.Errorf("%s: %+v", direction, r)
				}
			}
			live := m.Live(sdk.Attachment{Service: "web", Interface: "lo", Ifindex: 1})
			samples, err := sdktest.Open[sdk.Collector](t, m.Compiled, live).Collect()
			if err != nil {
				t.Fatal(err)
			}
			got := map[string]float64{}
			for _, s := range samples {
				if s.Name == "packets_total" {
					got[s.Labels["service"]+" "+s.Labels["direction"]] = s.Value
				}
			}
			if len(got) != 2 || got["web ingress"] != 2 || got["web egress"] != 1 {
				t.Errorf("%v", got)
			}
		})
	}
}
