// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/control/sandbox"
)

func mustURL(path string) *url.URL { return &url.URL{Path: path} }

// lines runs a log reader over text and returns what the agent's log has then.
func lines(t *testing.T, text string) (out []map[string]any, last string) {
	t.Helper()
	var log bytes.Buffer
	l := newLogReader(slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		io.NopCloser(strings.NewReader(text)))
	l.run()
	for line := range strings.Lines(log.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatal(err)
		}
		out = append(out, fields)
	}
	return out, l.lastLine()
}

// Lines come as lines; those of slog keep their level and attributes, and what only looks like them does no harm. None
// can pass for a line of the agent.
func TestLog(t *testing.T) {
	got, last := lines(t,
		"plain\n\n"+`{"level":"WARN","msg":"careful","port":7}`+"\n"+`{"level":"LOUD","msg":"x"}`+"\n"+`{"level":"ERROR","msg":"chain detached","module":"firewall","time":"x","error":"y","attributes":"z"}`+"\n"+`{"msg":7}`+"\n{broken\nno end of line")
	want := []string{"INFO control plane log plain", `WARN control plane log careful {"port":7}`,
		"INFO control plane log x",
		`WARN control plane log chain detached {"attributes":"z","error":"y","module":"firewall"}`,
		`INFO control plane log {"msg":7}`, "INFO control plane log {broken",
		"INFO control plane log no end of line"}
	if len(got) != len(want) || last != "no end of line" {
		t.Fatalf("%d lines, the last %q: %v", len(got), last, got)
	}
	for i, f := range got {
		text := fmt.Sprint(f["level"], " ", f["msg"], " ", f["line"])
		if attributes, ok := f["attributes"]; ok {
			data, _ := json.Marshal(attributes)
			text += " " + string(data)
		}
		if text != want[i] || f["module"] != nil || f["error"] != nil {
			t.Errorf("%q, want %q, and no attributes of the agent's: %v", text, want[i], f)
		}
	}
}

// A flood is cut, and the log says by how much.
func TestLogFlood(t *testing.T) {
	const flood = 5000
	got, _ := lines(t, strings.Repeat("word\n", flood))
	end := got[len(got)-1]
	delivered := len(got) - 1
	if lost, _ := end["linesLeftOut"].(float64); int(lost)+delivered != flood || delivered < logBurst {
		t.Errorf("%d lines were logged, and then %v", delivered, end)
	}
	got, last := lines(t, strings.Repeat("x", 3*logLine)+"\nnext\n")
	if len(got) != 2 || len(got[0]["line"].(string)) > logLine || last != "next" {
		t.Errorf("after a long line: %d lines, the last %q", len(got), last)
	}
}

// What a process has started counts as its memory, and a process that uses too much is ended.
func TestMemory(t *testing.T) {
	debug.FreeOSMemory() // what the runtime returns later would hide the child's
	own := resident(family(os.Getpid()))
	child := exec.Command("/proc/self/exe", "-test.run", "TestHelperAllocates", "-test.v")
	child.Env = append(os.Environ(), "CONTROL_ALLOCATES=64")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	for text := []byte{}; !bytes.Contains(text, []byte("allocated")); {
		part := make([]byte, 256)
		n, err := out.Read(part)
		if text = append(text, part[:n]...); err != nil {
			t.Fatalf("the process that allocates: %v: %s", err, text)
		}
	}
	if got := resident(family(os.Getpid())); got < own+64<<20 || resident([]int{child.Process.Pid}) < 64<<20 {
		t.Errorf("%d bytes with a child that has 64 MiB, %d before", got, own)
	}
	if all := []int{os.Getpid(), child.Process.Pid}; runTime(all) <= runTime(all[:1]) || runTime(all[1:]) <= 0 {
		t.Errorf("%v and %v of CPU time", runTime(all[:1]), runTime(all[1:]))
	}
	ended := make(chan string, 1)
	watchLimits(&process{pid: child.Process.Pid, ended: make(chan struct{}), end: func(why string) { ended <- why }},
		sandbox.Spec{Memory: 32 << 20, Network: true}, false)
	if why := <-ended; !strings.Contains(why, "may use 32 (control.memory") {
		t.Errorf("reported: %s", why)
	}
}

// TestHelperAllocates is the process of TestMemory.
func TestHelperAllocates(t *testing.T) {
	n := 0
	if _, err := fmt.Sscan(os.Getenv("CONTROL_ALLOCATES"), &n); err != nil {
		t.Skip("is run by another test")
	}
	held := bytes.Repeat([]byte{1}, n<<20)
	fmt.Println("allocated")
	time.Sleep(time.Minute) // until it is killed
	fmt.Println(held[0])
}

// What a control plane has written last is known when it has ended, however late it is read.
func TestLastWords(t *testing.T) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", "echo no way; exit 1")
	cmd.Stdout = writer
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	log := newLogReader(slog.New(slog.DiscardHandler), reader)
	p := watch(cmd, sandbox.Spec{}, nil, log)
	for !errors.Is(unix.Kill(p.pid, 0), unix.ESRCH) {
		time.Sleep(time.Millisecond) // until it is gone: nothing has been read yet
	}
	go log.run()
	<-p.ended
	if why := p.why().Error(); !strings.Contains(why, "no way") {
		t.Error(why)
	}
}

// All control planes are examined at the same moments, whenever they were started: the agent wakes up once for all.
func TestTicksAreShared(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		for range 10 {
			time.Sleep(137 * time.Millisecond) // in the bubble
			for _, period := range []time.Duration{limitsEvery, diskEvery, healthEvery} {
				wait := untilTick(period)
				if at := time.Now().Add(wait); wait <= 0 || wait > period || at.UnixNano()%period.Nanoseconds() != 0 {
					t.Errorf("every %v: in %v, at %v", period, wait, at)
				}
			}
		}
	})
}
