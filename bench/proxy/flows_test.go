// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func (f *flows) tracked(t *testing.T) (n int) {
	t.Helper()
	err := f.lab.Node().Do(func() error {
		text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
		if err == nil {
			n, err = strconv.Atoi(strings.TrimSpace(string(text)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// zipf sends at least a quarter of the packets to a hundredth of the flows, uniform the same number to each flow.
func TestOrder(t *testing.T) {
	for load, skewed := range map[string]bool{"flows/uniform-1k": false, "flows/zipf-1k": true} {
		n, err := flowNumber(load)
		if err != nil || n != 1000 {
			t.Fatal(n, err)
		}
		packets := map[int]int{}
		all := order(load, n)
		for _, i := range all {
			packets[i]++
		}
		counts := slices.Sorted(maps.Values(packets))
		slices.Reverse(counts)
		busy := 0
		for _, c := range counts[:n/100] {
			busy += c
		}
		if share := float64(busy) / float64(len(all)); skewed != (share > 0.25) || len(packets) > n {
			t.Errorf("%s: %d flows, 1%% of them have %.2f of the packets", load, len(packets), share)
		}
		if !skewed && len(packets) != n {
			t.Errorf("%s: %d flows", load, len(packets))
		}
	}
}

// In every config, packets of many connections reach the server, its replies reach the client, and conntrack has as
// many entries.
func TestManyFlows(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, c := range configs[:4] {
		t.Run(c.name, func(t *testing.T) {
			f, err := openFlows(c, "flows/uniform-10k", 10_000)
			if errors.Is(err, exec.ErrNotFound) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}()
			if c.routed && f.tracked(t) < 10_000 {
				t.Errorf("conntrack has %d connections", f.tracked(t))
			}
			samples, err := f.measure(true)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range samples {
				t.Logf("%s: %.0f %s", s.Metric, s.Value, s.Unit)
				if s.Value <= 0 {
					t.Errorf("%s: %v", s.Metric, s.Value)
				}
			}
		})
	}
}
