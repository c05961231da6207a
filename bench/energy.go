// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// powerMetric is the power of the processor packages during a round, if Linux provides it.
const powerMetric = "power"

// Energy is the energy used by the processor packages, from Linux's counters (RAPL, in /sys/class/powercap).
type Energy map[string]energyCounter

// energyCounter is in uJ, and wraps to 0 after most.
type energyCounter struct{ used, most float64 }

// ReadEnergy reads the counters below a root directory. It returns false if there are none, as on most virtual
// machines.
func ReadEnergy(root fs.FS) (Energy, bool) {
	e := Energy{}
	names, _ := fs.Glob(root, "sys/class/powercap/intel-rapl:*/name") // fails for bad patterns only
	for _, name := range names {
		zone := path.Dir(name)
		if !strings.HasPrefix(line(root, name), "package-") {
			continue // a part of a package, or the whole machine
		}
		used, err := strconv.ParseFloat(line(root, zone+"/energy_uj"), 64)
		most, err2 := strconv.ParseFloat(line(root, zone+"/max_energy_range_uj"), 64)
		if err == nil && err2 == nil {
			e[zone] = energyCounter{used, most}
		}
	}
	return e, len(e) > 0
}

// Since returns the energy used since before, in J.
func (e Energy) Since(before Energy) (joules float64) {
	for zone, c := range e {
		used := c.used - before[zone].used
		if used < 0 {
			used += c.most
		}
		joules += used / 1e6
	}
	return joules
}
