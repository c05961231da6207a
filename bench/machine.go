// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Machine describes the properties of a machine, apart from its kernel, that affect results.
type Machine struct {
	CPU     string `json:"cpu,omitempty"`     // model; arm64 has none
	Virtual bool   `json:"virtual,omitempty"` // a hypervisor says so
	// Governor is the CPU frequency governor; empty if Linux does not control the frequency (most virtual machines).
	Governor string `json:"governor,omitempty"`
	// SMT siblings, as lists of CPUs: "0-1". Two loads on siblings slow each other down.
	Siblings []string `json:"siblings,omitempty"`
	// Interrupts is the mask of CPUs, in hexadecimal, that handle interrupts of new devices.
	Interrupts string  `json:"interrupts,omitempty"`
	Load       float64 `json:"load"` // before the run: average over a minute, in runnable tasks, of the run before it, too
	// Busy is the CPU utilisation during the last second before the run, in %. Reports of earlier versions lack it.
	Busy  *float64 `json:"busy,omitempty"`
	Steal float64  `json:"steal"` // during the run: share of CPU time that the hypervisor gave to others, in %

	before cpuTimes
}

// maxBusy is the percentage of CPU time that other processes may use without a warning.
const maxBusy = 10

// maxSteal is the percentage of CPU time that the hypervisor may steal during a round, or a run, without a warning.
const maxSteal = 1

// cpuTimes are the times of all CPUs since boot, in clock ticks.
type cpuTimes struct{ idle, steal, all float64 }

// ThisMachine returns a description of this machine.
func ThisMachine() string { return readMachine(os.DirFS("/")).String() }

// readMachine reads the description from a root directory. Fields without a source remain empty.
func readMachine(root fs.FS) *Machine {
	m := &Machine{Governor: line(root, "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
		Interrupts: line(root, "proc/irq/default_smp_affinity"), before: readCPUTimes(root)}
	info, _ := fs.ReadFile(root, "proc/cpuinfo")
	for s := bufio.NewScanner(bytes.NewReader(info)); s.Scan(); {
		switch name, value, _ := strings.Cut(s.Text(), ":"); strings.TrimSpace(name) {
		case "model name":
			m.CPU = strings.TrimSpace(value)
		case "flags":
			m.Virtual = slices.Contains(strings.Fields(value), "hypervisor")
		}
	}
	files, _ := fs.Glob(root, "sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list")
	for _, file := range files {
		if list := line(root, file); strings.ContainsAny(list, ",-") {
			m.Siblings = appendNew(m.Siblings, list)
		}
	}
	average, _, _ := strings.Cut(line(root, "proc/loadavg"), " ")
	m.Load, _ = strconv.ParseFloat(average, 64)
	return m
}

// observe measures the CPU utilisation before a run.
func (m *Machine) observe(root fs.FS, pass func()) {
	begin := readCPUTimes(root)
	pass()
	m.before = readCPUTimes(root)
	if all := m.before.all - begin.all; all > 0 {
		busy := 100 - 100*(m.before.idle-begin.idle+m.before.steal-begin.steal)/all
		m.Busy = &busy
	}
}

// end records the steal time since readMachine or observe.
func (m *Machine) end(root fs.FS) {
	m.Steal = readCPUTimes(root).stolen(m.before)
}

// stolen returns the percentage of CPU time since before that the hypervisor has stolen.
func (t cpuTimes) stolen(before cpuTimes) float64 {
	all := t.all - before.all
	if all <= 0 {
		return 0
	}
	return 100 * (t.steal - before.steal) / all
}

func line(root fs.FS, path string) string {
	data, _ := fs.ReadFile(root, path)
	return strings.TrimSpace(string(data))
}

// readCPUTimes reads the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal (proc(5)).
func readCPUTimes(root fs.FS) (t cpuTimes) {
	first, _, _ := strings.Cut(line(root, "proc/stat"), "\n")
	for i, field := range strings.Fields(first) {
		ticks, err := strconv.ParseFloat(field, 64)
		if err != nil || i > 8 {
			continue // the name, and guest time, which user and nice include
		}
		t.all += ticks
		switch i {
		case 4, 5:
			t.idle += ticks
		case 8:
			t.steal = ticks
		}
	}
	return t
}

// String describes the machine before a run.
func (m *Machine) String() string {
	parts := []string{m.CPU}
	if m.CPU == "" {
		parts[0] = "unknown CPU model"
	}
	if m.Virtual {
		parts = append(parts, "virtual")
	}
	if m.Governor == "" {
		parts = append(parts, "no frequency governor")
	} else {
		parts = append(parts, "governor "+m.Governor)
	}
	if len(m.Siblings) > 0 {
		parts = append(parts, "SMT siblings: CPUs "+strings.Join(m.Siblings, ", CPUs "))
	}
	text := fmt.Sprintf("%s; interrupts on CPUs %s (mask), load %.2f", strings.Join(parts, ", "), m.Interrupts, m.Load)
	if m.Busy != nil {
		text += fmt.Sprintf(", CPUs %.0f%% busy before", *m.Busy)
	}
	return text
}

// warnings returns the reasons why results of this machine may be unreliable, with remedies.
func (m *Machine) warnings(cpus int) (all []string) {
	if m.Governor != "" && m.Governor != "performance" {
		all = append(all, fmt.Sprintf("governor %s: results depend on the load before the run; cpupower frequency-set -g "+
			"performance", m.Governor))
	}
	switch {
	case m.Busy == nil && m.Load > 0.3*float64(cpus):
		all = append(all, fmt.Sprintf("load average %.2f before the run: other programs use the CPUs", m.Load))
	case m.Busy != nil && *m.Busy > maxBusy:
		all = append(all, fmt.Sprintf("the CPUs were %.0f%% busy before the run: other programs use them", *m.Busy))
	}
	if m.Steal > maxSteal {
		all = append(all, fmt.Sprintf("the hypervisor stole %.1f%% of the CPU time during the run", m.Steal))
	}
	return all
}
