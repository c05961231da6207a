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

// prepareThread makes the calling thread one for packets that must not wait.
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
		raisePriority()
	}
	return nil
}

// raisePriority requests nice -20 if this process may, and the shortest time slices: such a thread preempts others as
// soon as it wakes (Linux 6.12).
func raisePriority() {
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
	leadSession()
}

// leadSession has a session that is this process's go before others, where each is a group for the scheduler
// (autogroup): nice counts within it only. One that is shared stays as it is.
func leadSession() {
	if sid, err := unix.Getsid(0); err == nil && sid == os.Getpid() {
		_ = os.WriteFile("/proc/self/autogroup", []byte("-20"), 0) // where there are none, nice is enough
	}
}

// threadStanding returns how the scheduler sees the calling thread. A nice value of -10 or less counts as preferred:
// it outweighs an ordinary thread about nine to one (sched_prio_to_weight of the kernel).
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

// look is what the scheduler has done to a thread so far.
type look struct {
	waited                 uint64 // ns, runnable and not running
	voluntary, involuntary int64
}

// readSchedstat reads the counters of the calling thread. schedstat is its /proc/thread-self/schedstat, opened once;
// nil if the kernel does not have it: then waited is 0.
func readSchedstat(schedstat *os.File) (l look) {
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

// threadTime is how long this thread has run, ns.
func threadTime() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return t.Nano()
}

// nameOf is the name of a thread that this process may see.
func nameOf(pid uint32) (name [16]byte) {
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
