// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

const pendulum = "../../examples/intercept-pendulum/"

// compileC compiles a C program of an example.
func compileC(t *testing.T, source string) string {
	t.Helper()
	clang, err := pkgs.FindClang(t.Context(), "")
	if err != nil {
		t.Skip(err)
	}
	library, err := filepath.Glob("../../lib/intercept/*.c")
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "program")
	args := append([]string{"-O2", "-I../../lib/intercept", "-I../../modules/intercept", "-I../../bpf/include", "-o", out,
		source}, library...)
	if text, err := exec.Command(clang, append(args, "-lm")...).CombinedOutput(); err != nil {
		t.Fatalf("compile %s: %v\n%s", source, err, text)
	}
	return out
}

// loop is the pendulum of the example, whose controller runs in web and receives the class of a module.
type loop struct {
	*node
	plant      string
	controller *exec.Cmd
}

// loopClass is the output of `kerb intercept classes` for a class.
type loopClass struct {
	Name                               string
	Delivered, Lost, Unread, Fallbacks uint64
	Program                            *struct{ Received uint64 }
}

// newModule returns a node with the example's module, without a controller.
func newModule(t *testing.T) *loop {
	t.Helper()
	l := &loop{node: newRunningNode(t), plant: compileC(t, pendulum+"plant.c")}
	l.applyExample(func(text string) string { return text })
	l.Eventually("the module serves programs", func() bool { return unix.Access(l.socket(), unix.W_OK) == nil })
	return l
}

// socket returns the socket by which the controller attaches to its class.
func (l *loop) socket() string { return filepath.Join(l.Run, "modules", "pendulum.sock") }

func newLoop(t *testing.T) *loop {
	t.Helper()
	l := newModule(t)
	l.startController(l.web, compileC(t, pendulum+"controller.c"), "-m", l.socket(), "-w", "sleep")
	t.Cleanup(l.endController)
	l.Eventually("the controller has opened the class", func() bool { return l.class("ctrl").Program != nil })
	return l
}

// startController returns when the controller has opened its port.
func (l *loop) startController(h *netlab.Host, program string, args ...string) {
	l.T.Helper()
	out, err := start(h, &l.controller, program, args...)
	if err != nil {
		l.T.Fatal(err)
	}
	if line, err := out.ReadString('\n'); line != "ready\n" {
		l.endController()
		l.T.Fatalf("the controller prints %q, %v", line, err)
	}
}

func (l *loop) endController() {
	_ = l.controller.Process.Kill()
	_ = l.controller.Wait()
}

// start runs a program in a host.
func start(h *netlab.Host, cmd **exec.Cmd, program string, args ...string) (*bufio.Reader, error) {
	*cmd = exec.Command(program, args...)
	(*cmd).Stderr = os.Stderr
	out, err := (*cmd).StdoutPipe()
	if err == nil {
		err = h.Do((*cmd).Start)
	}
	return bufio.NewReader(out), err
}

// applyExample applies the example's module, edited, for the service web.
func (l *loop) applyExample(edit func(text string) string) {
	l.T.Helper()
	text, err := os.ReadFile(pendulum + "module.yaml")
	if err != nil {
		l.T.Fatal(err)
	}
	if r := l.input(edit(strings.Replace(string(text), "app=box", "app=web", 1)), "apply", "-f", "-"); r.code != 0 {
		l.T.Fatalf("apply: %s", r.stderr)
	}
}

func (l *loop) class(name string) loopClass {
	l.T.Helper()
	var all []loopClass
	err := json.Unmarshal([]byte(l.must("intercept", "classes", "pendulum", "-o", "json")), &all)
	i := slices.IndexFunc(all, func(c loopClass) bool { return c.Name == name })
	if err != nil || i < 0 {
		l.T.Fatalf("%v, %+v", err, all)
	}
	return all[i]
}

// stands reports whether the pendulum stands for a time. After half of it, meanwhile is called.
func (l *loop) stands(seconds string, meanwhile func()) bool {
	l.T.Helper()
	var plant *exec.Cmd
	out, err := start(l.db, &plant, l.plant, "-t", seconds, l.web.Addr4().String())
	if err != nil {
		l.T.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond) // of its run time
	meanwhile()
	line, _ := out.ReadString('\n')
	l.T.Logf("plant: %s", strings.TrimSpace(line))
	var exit *exec.ExitError
	if err := plant.Wait(); err != nil && !errors.As(err, &exit) {
		l.T.Fatal(err)
	}
	return strings.HasPrefix(line, "stood")
}

func (l *loop) signal(s unix.Signal) {
	l.T.Helper()
	if err := l.controller.Process.Signal(s); err != nil {
		l.T.Fatal(err)
	}
}

// The pendulum's law in the kernel keeps it upright while its controller is stopped, and the controller continues when
// it runs again. Without the law the pendulum falls.
func TestPendulumStandsWithoutItsController(t *testing.T) {
	l := newLoop(t)
	if !l.stands("1", func() {}) {
		t.Error("it fell with its controller")
	}
	if c := l.class("ctrl"); c.Delivered == 0 {
		t.Errorf("the controller had no packets: %+v", c)
	}
	before := l.class("ctrl")
	if !l.stands("2", func() { l.signal(unix.SIGSTOP) }) {
		t.Error("it fell when its controller was stopped")
	}
	// about 1500 steps; those within the deadline are in the ring
	after := l.class("ctrl")
	if n := after.Fallbacks - before.Fallbacks; n < 1000 {
		t.Errorf("%d answers of the law: %+v", n, after)
	}
	if !l.stands("1", func() { l.signal(unix.SIGCONT) }) {
		t.Error("it fell when its controller was back")
	}
	if c := l.class("ctrl"); c.Delivered < after.Delivered+100 {
		t.Errorf("the controller was not back: %+v, after %+v", c, after)
	}
	l.applyExample(withoutFallback)
	l.Eventually("the controller has the class", func() bool { return l.class("ctrl").Program != nil })
	if l.stands("2", func() { l.signal(unix.SIGSTOP) }) {
		t.Error("it stood without a controller and without the law")
	}
	l.signal(unix.SIGCONT)
}

// withoutFallback removes the law from the example.
func withoutFallback(text string) string {
	before, rest, _ := strings.Cut(text, "        fallback:")
	_, after, _ := strings.Cut(rest, "          to: 4\n")
	return before + after
}

// It stands while all CPUs are busy with other work.
func TestPendulumStandsUnderStress(t *testing.T) {
	l := newLoop(t)
	end := busy(t, 2*runtime.NumCPU())
	defer end()
	stood := l.stands("1", func() {})
	end()
	c := l.class("ctrl")
	if t.Logf("%d steps for the controller, %d by the law", c.Delivered, c.Fallbacks); !stood || c.Delivered == 0 {
		t.Errorf("it stood: %v; %+v", stood, c)
	}
}

// busy starts endless loops; end stops them.
func busy(t *testing.T, n int) (end func()) {
	t.Helper()
	var all []*exec.Cmd
	end = func() {
		for _, loop := range all {
			_ = loop.Process.Kill()
			_ = loop.Wait()
		}
		all = nil
	}
	for range n {
		loop := exec.Command("sh", "-c", "while :; do :; done")
		if err := loop.Start(); err != nil {
			end()
			t.Fatal(err)
		}
		all = append(all, loop)
	}
	return end
}
