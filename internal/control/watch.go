// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const memoryEvery = 500 * time.Millisecond

// watchMemory ends a process whose own memory is over the limit. A cgroup would do it sooner, but the agent may not make
// one everywhere; the sandbox's limit on data bounds what can happen in between.
func watchMemory(p *process, limit int64) {
	tick := time.NewTicker(memoryEvery)
	defer tick.Stop()
	processes, ran := []int{p.pid}, time.Duration(-1)
	for {
		select {
		case <-p.ended:
			return
		case <-tick.C:
		}
		if now := runTime(processes); now > 0 && now == ran { // who has not run has neither grown nor started others
			continue
		}
		processes = family(p.pid)
		ran = runTime(processes)
		if got := resident(processes); limit > 0 && got > limit {
			p.end(fmt.Sprintf("used %d MiB of memory, and may use %d (control.memory in the package's manifest)", got>>20, limit>>20))
			return
		}
	}
}

// family are a process and those that it has started.
func family(pid int) []int {
	all := []int{pid}
	tasks := fmt.Sprintf("/proc/%d/task", pid)
	threads, _ := os.ReadDir(tasks) // gone: nobody to count
	for _, thread := range threads {
		for child := range strings.FieldsSeq(procFile(tasks + "/" + thread.Name() + "/children")) {
			if id, err := strconv.Atoi(child); err == nil {
				all = append(all, family(id)...)
			}
		}
	}
	return all
}

// runTime is the CPU time of processes, by their clocks: clock_getcpuclockid(3).
func runTime(pids []int) (sum time.Duration) {
	const scheduled = 2 // CPUCLOCK_SCHED of the kernel: to the nanosecond
	for _, pid := range pids {
		var ran unix.Timespec // of one that is gone: 0
		_ = unix.ClockGettime(int32(^pid<<3|scheduled), &ran)
		sum += time.Duration(ran.Nano())
	}
	return sum
}

// resident is the memory that processes share with nobody, in bytes.
func resident(pids []int) (sum int64) {
	for _, pid := range pids {
		fields := strings.Fields(procFile(fmt.Sprintf("/proc/%d/statm", pid)))
		if len(fields) < 3 {
			continue // gone
		}
		all, _ := strconv.ParseInt(fields[1], 10, 64)
		shared, _ := strconv.ParseInt(fields[2], 10, 64)
		sum += (all - shared) * int64(os.Getpagesize())
	}
	return sum
}

// procFile is the text of a file of proc(5), empty if its process is gone. os.ReadFile takes three times as long.
func procFile(path string) string {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	var text []byte
	for part := make([]byte, 512); ; {
		n, err := unix.Read(fd, part)
		if n <= 0 && err != unix.EINTR {
			return string(text)
		}
		text = append(text, part[:max(n, 0)]...)
	}
}

// What a control plane may write to the log: this many lines at once, then this many a second.
const (
	logBurst   = 100
	logRate    = 10
	logLine    = 4096 // bytes; longer lines are cut
	tellLosses = 10 * time.Second
)

// logReader carries the output of a control plane into the agent's log.
type logReader struct {
	log *slog.Logger
	in  io.ReadCloser

	mu   sync.Mutex
	last string
}

func newLogReader(log *slog.Logger, in io.ReadCloser) *logReader { return &logReader{log: log, in: in} }

func (l *logReader) lastLine() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last
}

func (l *logReader) run() {
	defer l.in.Close()
	in := bufio.NewReaderSize(l.in, logLine)
	tokens, since, lost, told := float64(logBurst), time.Now(), 0, time.Now()
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
				l.tell(text)
			} else {
				lost++
			}
		}
		if lost > 0 && (err != nil || time.Since(told) > tellLosses) {
			l.log.Warn("the control plane says more than the log takes", "linesLeftOut", lost)
			lost, told = 0, time.Now()
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

// tell logs a line; one of slog's JSON keeps its level and attributes.
func (l *logReader) tell(text string) {
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
		l.log.Info("control plane says", "line", text)
		return
	}
	var attrs []slog.Attr
	for key, value := range fields {
		if key != slog.MessageKey && key != slog.LevelKey && key != slog.TimeKey {
			attrs = append(attrs, slog.Any(key, value))
		}
	}
	l.log.LogAttrs(context.Background(), level, message, attrs...)
}
