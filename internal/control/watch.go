// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/control/sandbox"
)

const (
	limitsEvery = 500 * time.Millisecond
	diskEvery   = 2 * time.Second // it examines each file
	healthEvery = 5 * time.Second
)

// untilTick returns the time to the next tick of a period. All control planes share the ticks: together they wake the
// agent as often as one.
func untilTick(period time.Duration) time.Duration {
	return period - time.Duration(time.Now().UnixNano())%period
}

// watchLimits ends a process that exceeds its limits. A cgroup stops memory sooner, if one is delegated to the agent:
// memory is then checked as rarely as files. Otherwise the sandbox's limits bound what can happen in between.
func watchLimits(p *process, spec sandbox.Spec, enclosed bool) {
	period := limitsEvery
	if enclosed {
		period = diskEvery
	}
	tick := time.NewTimer(untilTick(period))
	defer tick.Stop()
	disk := int(diskEvery / period)
	// CPU time at the last check of memory, and of files
	processes, ran, wrote := []int{p.pid}, time.Duration(-1), time.Duration(-1)
	for n := 1; ; n++ {
		select {
		case <-p.ended:
			return
		case <-tick.C:
		}
		tick.Reset(untilTick(period))
		now := runTime(processes)
		if now > 0 && now == ran && (now == wrote || n < disk) { // a process that has not run has not grown
			continue
		}
		processes = family(p.pid)
		ran = runTime(processes)
		why := memoryOver(processes, spec)
		if why == "" && n >= disk {
			why, n, wrote = diskOver(processes, spec), 0, ran
		}
		if why != "" {
			p.end(why)
			return
		}
	}
}

// memoryOver describes by how much processes exceed their memory limit; empty if they do not.
func memoryOver(pids []int, spec sandbox.Spec) string {
	memory := resident(pids)
	if !spec.Network { // otherwise the node's sockets would be counted
		memory += socketBuffers(pids[0])
	}
	if spec.Memory > 0 && memory > spec.Memory {
		return memoryExceeded(memory, spec.Memory)
	}
	return ""
}

// diskOver does the same for the disk limit.
func diskOver(pids []int, spec sandbox.Spec) string {
	if spec.Disk <= 0 {
		return ""
	}
	for _, dir := range spec.Write {
		if bytes, files := diskUse(dir, pids, spec.Disk); bytes > spec.Disk || files > maxFiles(spec.Disk) {
			return fmt.Sprintf("has %d MiB in %d files in %s, and may have %d MiB in %d (control.disk in the package's "+
				"manifest): remove some",
				bytes>>20, files, dir, spec.Disk>>20, maxFiles(spec.Disk))
		}
	}
	return ""
}

func memoryExceeded(used, limit int64) string {
	return fmt.Sprintf("used %d MiB of memory, and may use %d (control.memory in the package's manifest)",
		used>>20, limit>>20)
}

// family is a process and its descendants.
func family(pid int) []int {
	all := []int{pid}
	tasks := fmt.Sprintf("/proc/%d/task", pid)
	threads, _ := os.ReadDir(tasks) // the process has exited
	for _, thread := range threads {
		for child := range strings.FieldsSeq(procFile(tasks + "/" + thread.Name() + "/children")) {
			if id, err := strconv.Atoi(child); err == nil {
				all = append(all, family(id)...)
			}
		}
	}
	return all
}

// runTime returns the CPU time of processes, by their clocks: clock_getcpuclockid(3). It does not block, so it is
// hidden from the runtime, which would wake up a thread to watch over the system call.
func runTime(pids []int) (sum time.Duration) {
	const scheduled = 2 // CPUCLOCK_SCHED of the kernel: to the nanosecond
	for _, pid := range pids {
		var ran unix.Timespec // of one that is gone: 0
		_, _, _ = unix.RawSyscall(unix.SYS_CLOCK_GETTIME, uintptr(^pid<<3|scheduled), uintptr(unsafe.Pointer(&ran)), 0)
		sum += time.Duration(ran.Nano())
	}
	return sum
}

// resident returns the memory of processes without files, in bytes: private and shared memory, swapped or not, and page
// tables.
func resident(pids []int) (sum int64) {
	for _, pid := range pids {
		for line := range strings.Lines(procFile(fmt.Sprintf("/proc/%d/status", pid))) {
			name, value, _ := strings.Cut(line, ":")
			switch name {
			case "RssAnon", "RssShmem", "VmSwap", "VmPTE":
				kilobytes, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
				sum += kilobytes << 10
			}
		}
	}
	return sum
}

// socketBuffers returns how much the sockets of a process's own network namespace can hold, in bytes. It cannot enlarge
// their buffers.
func socketBuffers(pid int) int64 {
	text := procFile(fmt.Sprintf("/proc/%d/net/sockstat", pid))
	var sockets int64
	if _, err := fmt.Sscanf(text, "sockets: used %d", &sockets); err != nil {
		return 0 // gone
	}
	return sockets * socketBuffer()
}

// socketBuffer is the kernel's default size of a socket's buffer.
var socketBuffer = sync.OnceValue(func() int64 {
	n, err := strconv.ParseInt(strings.TrimSpace(procFile("/proc/sys/net/core/wmem_default")), 10, 64)
	if err != nil || n <= 0 {
		return 208 << 10
	}
	return n
})

// procFile returns the text of a file of proc(5), empty if its process has ended. os.ReadFile takes three times as
// long.
func procFile(path string) string {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var text []byte
	for part := make([]byte, 4096); ; {
		n, err := unix.Read(fd, part)
		if n <= 0 && err != unix.EINTR {
			return string(text)
		}
		text = append(text, part[:max(n, 0)]...)
	}
}

// Rate limit of a control plane's log: a burst of this many lines, then this many per second.
const (
	logBurst    = 100
	logRate     = 10
	logLine     = 4096 // bytes; longer lines are cut
	lossesEvery = 10 * time.Second
)

// logReader copies the output of a control plane to the agent's log.
type logReader struct {
	log     *slog.Logger
	in      io.ReadCloser
	highest slog.Level    // of its lines: errors in the log are reserved for the agent
	ended   chan struct{} // closed when everything has been read

	mu   sync.Mutex
	last string
}

func newLogReader(log *slog.Logger, in io.ReadCloser) *logReader {
	return &logReader{log: log, in: in, highest: slog.LevelWarn, ended: make(chan struct{})}
}

// await returns when all output has been read, or after a moment: a child of the process may keep its end open.
func (l *logReader) await() {
	select {
	case <-l.ended:
	case <-time.After(100 * time.Millisecond):
	}
}

func (l *logReader) lastLine() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

// run reads lines until the control plane closes its end. Lines above the rate limit (a token bucket) are dropped and
// counted, long ones are cut, so that a control plane can neither block on its log nor fill the agent's.
func (l *logReader) run() {
	defer close(l.ended)
	defer l.in.Close()
	in := bufio.NewReaderSize(l.in, logLine)
	tokens, since, lost, delivered := float64(logBurst), time.Now(), 0, time.Now()
	for {
		line, cut, err := in.ReadLine()
		for more := cut; more && err == nil; {
			_, more, err = in.ReadLine()
		}
		if text := strings.TrimSpace(string(line)); text != "" {
			now := time.Now()
			tokens = min(logBurst, tokens+now.Sub(since).Seconds()*logRate)
			since = now
			l.remember(text)
			if tokens >= 1 {
				tokens--
				l.relay(text)
			} else {
				lost++
			}
		}
		if lost > 0 && (err != nil || time.Since(delivered) > lossesEvery) {
			l.log.Warn("the control plane logs more than the limit; lines are dropped", "linesLeftOut", lost)
			lost, delivered = 0, time.Now()
		}
		if err != nil {
			return
		}
	}
}

func (l *logReader) remember(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = text[:min(len(text), 200)]
}

// relay logs a line. One of slog's JSON keeps its level, and its attributes as a group: none can pass for the agent's
// own.
func (l *logReader) relay(text string) {
	var fields map[string]any
	level := slog.LevelInfo
	message, isText := "", false
	if strings.HasPrefix(text, "{") && json.Unmarshal([]byte(text), &fields) == nil {
		message, isText = fields[slog.MessageKey].(string)
		if name, ok := fields[slog.LevelKey].(string); ok && level.UnmarshalText([]byte(name)) != nil {
			level = slog.LevelInfo
		}
	}
	if !isText {
		message, fields = text, nil
	}
	var attrs []any
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if key != slog.MessageKey && key != slog.LevelKey && key != slog.TimeKey {
			attrs = append(attrs, slog.Any(key, fields[key]))
		}
	}
	l.log.LogAttrs(context.Background(), min(level, l.highest), "control plane log", slog.String("line", message),
		slog.Group("attributes", attrs...))
}
