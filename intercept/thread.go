// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const shortSlice = 100_000 // ns

// prepareThread sets timer slack, affinity, memory locking and priority of the calling thread.
func prepareThread(o *Options) error {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	if len(o.CPUs) > 0 {
		var set unix.CPUSet
		for _, cpu := range o.CPUs {
			set.Set(cpu)
		}
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("pin to CPUs %v: %w", o.CPUs, err)
		}
	}
	if o.LockMemory {
		if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE); err != nil {
			return fmt.Errorf("lock memory: %w: it needs CAP_IPC_LOCK or a larger ulimit -l", err)
		}
	}
	switch {
	case o.FIFO > 0:
		a := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: uint32(o.FIFO)}
		if err := unix.SchedSetAttr(0, &a, 0); err != nil {
			return fmt.Errorf("SCHED_FIFO %d: %w: it needs CAP_SYS_NICE or ulimit -r %d", o.FIFO, err, o.FIFO)
		}
	case !o.KeepPriority:
		requestShortSlices()
	}
	return nil
}

// requestShortSlices requests nice -20 if this process may, and the shortest time slices: such a thread preempts others
// as soon as it wakes (Linux 6.12).
func requestShortSlices() {
	a, err := unix.SchedGetAttr(0, 0)
	if err != nil || a.Policy != unix.SCHED_NORMAL {
		return
	}
	was := a.Nice
	a.Nice, a.Runtime = -20, shortSlice
	if unix.SchedSetAttr(0, a, 0) != nil {
		a.Nice = was
		_ = unix.SchedSetAttr(0, a, 0)
		return
	}
	raiseAutogroup()
}

// raiseAutogroup sets nice -20 for the session's scheduling group: with autogroup, nice values count within a session
// only (sched(7)). It leaves a session that other processes share unchanged.
func raiseAutogroup() {
	if sid, err := unix.Getsid(0); err == nil && sid == os.Getpid() {
		_ = os.WriteFile("/proc/self/autogroup", []byte("-20"), 0) // without autogroup, nice suffices
	}
}

// threadStanding returns how the scheduler treats the calling thread. A nice value of -10 or less counts as preferred:
// it outweighs an ordinary thread about nine to one (the kernel's sched_prio_to_weight).
func threadStanding() standing {
	a, err := unix.SchedGetAttr(0, 0)
	switch {
	case err != nil:
		return ordinary
	case a.Policy == unix.SCHED_FIFO || a.Policy == unix.SCHED_RR:
		return realtime
	case a.Nice <= -10:
		return preferred
	}
	return ordinary
}

// schedSample has the scheduler's counters of a thread.
type schedSample struct {
	waited                 uint64 // ns, runnable but not running
	voluntary, involuntary int64
}

// sampleThread samples the counters of the calling thread. schedstat is its open /proc/thread-self/schedstat, or nil:
// then waited is 0.
func sampleThread(schedstat *os.File) (l schedSample) {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &usage) == nil {
		l.voluntary, l.involuntary = usage.Nvcsw, usage.Nivcsw
	}
	if schedstat == nil {
		return l
	}
	line := make([]byte, 96)
	n, _ := schedstat.ReadAt(line, 0)
	if fields := strings.Fields(string(line[:n])); len(fields) > 1 {
		l.waited, _ = strconv.ParseUint(fields[1], 10, 64)
	}
	return l
}

// threadTime returns the CPU time of this thread in ns.
func threadTime() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return t.Nano()
}

// threadName returns the name of a thread, or zeros if it is unknown.
func threadName(pid uint32) (name [16]byte) {
	if pid == 0 {
		return name
	}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	copy(name[:len(name)-1], strings.TrimSpace(string(text)))
	return name
}

func currentCPU() (cpu uint32) {
	_, _, _ = unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0)
	return cpu
}
