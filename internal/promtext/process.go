// SPDX-License-Identifier: Apache-2.0

package promtext

import (
	"fmt"
	"os"
	"runtime"
	"runtime/metrics"
	"time"

	"golang.org/x/sys/unix"
)

var started = time.Now()

// goMetrics are metrics of the Go runtime by the names that dashboards of Go programs use.
var goMetrics = []struct {
	name, help, source string
	counter            bool
}{
	{"go_goroutines", "Goroutines.", "/sched/goroutines:goroutines", false},
	{"go_threads", "Threads of the operating system.", "/sched/threads/total:threads", false},
	{"go_gc_cycles_total", "Completed garbage collections.", "/gc/cycles/total:gc-cycles", true},
	{"go_memstats_alloc_bytes", "Heap objects in bytes.", "/memory/classes/heap/objects:bytes", false},
	{"go_memstats_alloc_bytes_total", "Bytes allocated on the heap, freed or not.", "/gc/heap/allocs:bytes", true},
	{"go_memstats_heap_objects", "Heap objects.", "/gc/heap/objects:objects", false},
	{"go_memstats_heap_released_bytes", "Heap memory returned to the operating system.",
		"/memory/classes/heap/released:bytes", false},
	{"go_memstats_next_gc_bytes", "Size of the heap at which the next garbage collection starts.", "/gc/heap/goal:bytes",
		false},
	{"go_memstats_sys_bytes", "Address space that the Go runtime has mapped.", "/memory/classes/total:bytes", false},
}

// Process adds metrics of this process and of its Go runtime.
func (s *Set) Process() {
	samples := make([]metrics.Sample, len(goMetrics))
	for i, m := range goMetrics {
		samples[i].Name = m.source
	}
	metrics.Read(samples)
	s.Gauge("go_info", "The version of Go.", 1, "version", runtime.Version())
	for i, m := range goMetrics {
		kind := map[bool]string{true: "counter", false: "gauge"}[m.counter]
		s.add(m.name, m.help, kind, float64(samples[i].Value.Uint64()), nil)
	}
	s.Gauge("process_start_time_seconds", "Start of the process in seconds since 1970.", float64(started.UnixMilli())/1e3)
	if err := s.addProc(); err != nil {
		s.problems = append(s.problems, fmt.Errorf("metrics of the process: %w", err))
	}
}

// addProc adds what the kernel reports of the process.
func (s *Set) addProc() error {
	cpu, size, resident, err := Usage()
	if err != nil {
		return err
	}
	s.Counter("process_cpu_seconds_total", "CPU time in user and system mode.", cpu)
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	s.Gauge("process_max_fds", "Limit of open file descriptors.", float64(files.Cur))
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	s.Gauge("process_open_fds", "Open file descriptors.", float64(len(open)-1)) // one was for reading the directory
	s.Gauge("process_virtual_memory_bytes", "Address space.", size)
	s.Gauge("process_resident_memory_bytes", "Resident memory.", resident)
	return nil
}

// Usage returns the CPU time of this process in seconds, its address space and its resident memory in bytes.
func Usage() (cpu, size, resident float64, err error) {
	var usage unix.Rusage
	if err = unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, 0, 0, err
	}
	cpu = time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
	statm, err := os.ReadFile("/proc/self/statm")
	if err == nil {
		_, err = fmt.Sscan(string(statm), &size, &resident)
	}
	page := float64(os.Getpagesize())
	return cpu, size * page, resident * page, err
}
