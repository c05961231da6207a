// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"testing"
	"testing/fstest"
)

// zones returns two packages with a part of one, the whole machine, and a zone without a counter.
func zones(first, second string) fstest.MapFS {
	const dir = "sys/class/powercap/intel-rapl:"
	files := fstest.MapFS{}
	for zone, f := range map[string][3]string{"0": {"package-0", first, "1000000"}, "0:0": {"core", "777", "1000000"},
		"1": {"package-1", second, "1000000"}, "2": {"psys", "888", "1000000"}, "3": {"package-3", "", "1000000"}} {
		files[dir+zone+"/name"] = &fstest.MapFile{Data: []byte(f[0] + "\n")}
		files[dir+zone+"/energy_uj"] = &fstest.MapFile{Data: []byte(f[1] + "\n")}
		files[dir+zone+"/max_energy_range_uj"] = &fstest.MapFile{Data: []byte(f[2] + "\n")}
	}
	return files
}

// Energy is that of the packages, whose counters wrap to 0.
func TestEnergy(t *testing.T) {
	before, ok := ReadEnergy(zones("100", "900000"))
	after, _ := ReadEnergy(zones("200100", "100000"))
	if got := after.Since(before); !ok || len(before) != 2 || got != 0.4 {
		t.Errorf("%v, %v: %v J", ok, before, got)
	}
	if e, ok := ReadEnergy(fstest.MapFS{}); ok || e.Since(e) != 0 {
		t.Errorf("without counters: %v", e)
	}
	root := zones("100", "900000")
	c := readKernelCounts(root)
	later := readKernelCounts(zones("1000100", "900000"))
	later.at = c.at.Add(2e9)
	if s := later.since(c); len(s) != 4 || s[3] != P50("power", "W", 0.5) {
		t.Errorf("%+v", s)
	}
}
