// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestMachine(t *testing.T) {
	root := fstest.MapFS{}
	set := func(path, content string) { root[path] = &fstest.MapFile{Data: []byte(content)} }
	set("proc/cpuinfo", "model name\t: Example 7\nflags\t\t: fpu hypervisor sse2\n")
	set("proc/stat", "cpu  100 0 100 700 0 0 0 100 50 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
	set("proc/loadavg", "1.50 1.00 0.50 3/100 4711\n")
	set("proc/irq/default_smp_affinity", "f\n")
	set("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n")
	set("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1\n")
	set("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "0-1\n")
	set("sys/devices/system/cpu/cpu2/topology/thread_siblings_list", "2\n")
	m := readMachine(root)
	set("proc/stat", "cpu  150 0 100 730 0 0 0 120 80 0\n")
	m.end(root)
	const want = "Example 7, virtual, governor powersave, SMT siblings: CPUs 0-1; " +
		"interrupts on CPUs f (mask), load 1.50"
	if got := m.String(); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if m.Steal != 20 { // of 100 ticks, without guest time
		t.Errorf("steal %v%%, want 20", m.Steal)
	}
	if got := (&Report{Machine: m}).Where(); !strings.HasSuffix(got, want+", steal 20.0%") {
		t.Errorf("a report is of %s", got)
	}
	if got := m.warnings(2); len(got) != 3 {
		t.Errorf("warnings %q, want governor, load and steal", got)
	}
	for _, busy := range []float64{8, 40} { // of 100 ticks; 2 are iowait
		set("proc/stat", "cpu  0 0 0 0 0 0 0 0 0 0\n")
		m := readMachine(root)
		m.observe(root, func() {
			set("proc/stat", fmt.Sprintf("cpu  %v 0 0 %v 2 0 0 3 0 0\n", busy, 95-busy)) // steal is no program's
		})
		if m.end(root); m.Steal != 0 {
			t.Errorf("steal of %v%% before the run", m.Steal)
		}
		if text := fmt.Sprintf(", load 1.50, CPUs %v%% busy before", busy); !strings.HasSuffix(m.String(), text) {
			t.Errorf("%s, want %s", m, text)
		}
		if got := strings.Join(m.warnings(2), "; "); strings.Contains(got, "busy") != (busy > 10) {
			t.Errorf("%v%% busy: %s", busy, got)
		}
	}
	empty := readMachine(fstest.MapFS{})
	empty.observe(fstest.MapFS{}, func() {})
	empty.end(fstest.MapFS{})
	if got := empty.warnings(2); len(got) > 0 || !slices.Equal(empty.Siblings, nil) {
		t.Errorf("%+v, %q", empty, got)
	}
}
