// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
	"time"
)

const counterMetrics = `# HELP kerb_counter_packets_total Packets.
# TYPE kerb_counter_packets_total counter
kerb_counter_packets_total{module="c",service="web",interface="eth0",direction="egress",family="4",protocol="TCP"} 10
kerb_counter_packets_total{module="c",service="web",interface="eth0",direction="egress",family="6",protocol="TCP"} 5
kerb_counter_packets_total{module="c",service="web",interface="eth0",direction="ingress",family="4",protocol="TCP"} 7
kerb_counter_bytes_total{module="c",service="web",interface="eth0",direction="egress",family="4",protocol="TCP"} 1e+06
kerb_counter_bytes_total{module="c",interface="uplink",direction="ingress",family="4",protocol="UDP"} 64
kerb_counter_overflow_packets_total{module="c",direction="egress"} 0
kerb_modules 3
`

func TestTraffic(t *testing.T) {
	now, err := trafficIn([]byte(counterMetrics))
	if err != nil || len(now) != 2 {
		t.Fatal(now, err)
	}
	if want := (traffic{"web", 15, 7, 1e6, 0}); now["web"] != want {
		t.Errorf("%+v, want %+v", now["web"], want)
	}
	before := map[string]traffic{"web": {"web", 5, 7, 0, 0}, "uplink": {"uplink", 0, 0, 0, 100}}
	all := rates(before, now, 2*time.Second)
	if len(all) != 2 || all[0] != (traffic{"web", 5, 0, 5e5, 0}) || all[1].Service != "uplink" {
		t.Errorf("%+v", all)
	}
}

func TestTrafficNeedsACounter(t *testing.T) {
	if _, err := trafficIn([]byte("kerb_modules 3\n")); err == nil ||
		!strings.Contains(err.Error(), "deploy the package counter") {
		t.Error(err)
	}
}
