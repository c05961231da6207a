// SPDX-License-Identifier: Apache-2.0

package nri_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/integrations/kubernetes/nri"
	"github.com/kerb-edge/kerb/internal/lab/gobuild"
	"github.com/kerb-edge/kerb/internal/lab/nritest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// The program is started from the directory of this one, which a test links to a directory of its own.
func TestMain(m *testing.M) {
	if socket := os.Getenv("KERB_TEST_NRI"); socket != "" {
		nri.Run(context.Background(), socket, &printer{}, slog.New(slog.NewTextHandler(os.Stderr, nil)))
		return
	}
	os.Exit(m.Run())
}

// printer prints events, and refuses pods that are called so.
type printer struct{ mu sync.Mutex }

func (p *printer) print(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Printf(format+"\n", args...)
}

func (p *printer) Replace(runtime string, all iter.Seq[nri.Pod]) {
	p.print("%s has %d pods", runtime, len(slices.Collect(all)))
}

func (p *printer) Start(ctx context.Context, pod nri.Pod) error {
	p.print("start %s %v", pod.Name, pod.Labels)
	switch pod.Name {
	case "refused":
		return errors.New("it is refused")
	case "late":
		<-ctx.Done()
		return errors.New("it is late")
	}
	return nil
}

func (p *printer) Stop(pod nri.Pod) { p.print("stop %s", pod.Name) }

func (p *printer) Disconnected(err error) { p.print("disconnected: %v", err) }

// output is what the process has printed so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// The events of a runtime reach the process that starts kerb-nri, and its answers the runtime. kerb-nri is started
// again when it has ended, and ends with its process.
func TestProgram(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("builds a program, which runs as root on nodes, into the repository")
	}
	dir := t.TempDir()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "self"), self, 0o755), //nolint:gosec
		gobuild.Build(filepath.Join(dir, nri.Program), "github.com/kerb-edge/kerb/cmd/kerb-nri")); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "nri.sock")
	r := nritest.Start(t, socket)
	r.Add(nritest.Pod("s1", "shop", "web", "u1", nil), nritest.Pod("s2", "shop", "db", "u2", nil))
	said := &output{}
	cmd := exec.Command(filepath.Join(dir, "self"))
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "KERB_TEST_NRI="+socket), said, os.Stderr
	cmd.WaitDelay = wait.Patience
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	says := func(text string) {
		t.Helper()
		wait.Until(t, text, func() bool { return strings.Contains(said.String(), text) }, func() any { return said })
	}
	says("nritest v1 has 2 pods\n")
	if err := r.Run(nritest.Pod("s3", "shop", "new", "u3", map[string]string{"app": "web"})); err != nil {
		t.Error(err)
	}
	says("start new map[app:web]\n")
	for name, want := range map[string]string{"refused": "it is refused", "late": "it is late"} {
		err := r.Run(nritest.Pod("s4", "shop", name, "u4", nil))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
		says("stop " + name + "\n")
	}
	r.Restart()
	says("disconnected: ")
	says("nritest v1 has 3 pods\n")

	first := child(t, cmd.Process.Pid)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	says("disconnected: kerb-nri has ended: ")
	wait.Until(t, "it is connected again", func() bool {
		return strings.Count(said.String(), "nritest v1 has 3 pods\n") == 2
	})
	second := child(t, cmd.Process.Pid)
	_ = cmd.Process.Kill()
	wait.Until(t, "kerb-nri has ended", func() bool { return syscall.Kill(second, 0) != nil })
}

// child returns the child of a process.
func child(t *testing.T, pid int) (child int) {
	t.Helper()
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		if n, _ := fmt.Sscan(string(text), &child); n == 1 {
			return child
		}
	}
	t.Fatal("the process has no child")
	return 0
}

// What the program writes may be cut off, or be of another version: it is started again, and no container starts by it.
func TestWrongEvents(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "EOF",
		"x":                               "invalid character",
		`{"event": "other"}`:              `unknown event "other"`,
		`{"event": "start", "number": 1}`: "start has no pod",
		`{"event": "connected"}`:          "EOF",
		`{"event": "connected"}{"event": "start"}`:                                      `event "start" among the pods`,
		`{"event": "start", "number": 1, "millis": 60000, "pod": {"name": "late"}}{`:    "EOF",
		`{"event": "connected"}{"event": "complete"}{"event": "stop", "pod": {}}{"x":1`: "EOF",
	} {
		began := time.Now()
		err := nri.Receive(t.Context(), strings.NewReader(text), io.Discard, &printer{})
		if err == nil || !strings.Contains(err.Error(), want) || time.Since(began) > 10*time.Second {
			t.Errorf("%s: %v after %v", text, err, time.Since(began))
		}
	}
}
