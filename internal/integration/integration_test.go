// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/integration/link"
)

// The test binary is the integration as well.
func TestMain(m *testing.M) {
	probes := map[string]Main{"probe": probe}
	if len(os.Args) > 1 && os.Args[1] == confineCommand {
		done := make(chan struct{})
		go func() { // on a thread other than the first one, where Go may run main, too
			runtime.LockOSThread()
			Intercept(probes)
			close(done)
		}()
		<-done
	}
	Intercept(probes)
	os.Exit(m.Run())
}

func init() { runtime.LockOSThread() } // main runs on the first thread, of which the kernel asks the signal

// probe reports which signal it gets when the agent ends, and is ready, and ends, when the test says so: all by FIFOs.
func probe(ctx context.Context, options []byte, _ *slog.Logger, agent *link.Agent) error {
	defer context.AfterFunc(ctx, func() { os.Exit(1) })()
	dir := strings.Trim(string(options), `"`)
	var signal int32
	err := unix.Prctl(unix.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&signal)), 0, 0, 0)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "signal"), fmt.Append(nil, signal), 0)
	}
	if err == nil {
		_, err = os.ReadFile(filepath.Join(dir, "ready"))
	}
	if err != nil {
		return err
	}
	agent.Report("", "connected")
	if _, err = os.ReadFile(filepath.Join(dir, "fault")); err == nil {
		agent.Report("NotConnected", "no broker")
		_, err = os.ReadFile(filepath.Join(dir, "end"))
	}
	return errors.Join(err, errors.New("asked to end"))
}

// An integration is killed with the agent whatever thread starts it, and its condition is true when it serves, not
// before.
func TestLife(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: integrations drop capabilities")
	}
	dir := t.TempDir()
	for _, name := range []string{"signal", "ready", "fault", "end"} {
		if err := unix.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	changed := make(chan struct{}, 16)
	s := NewSet([]Program{{Name: "probe", Options: dir}}, slog.New(slog.DiscardHandler), func() { changed <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { s.Run(ctx) })
	check := func(status, reason, message string) {
		t.Helper()
		c, _ := s.Condition()
		if c.Status != status || c.Reason != reason || !strings.Contains(c.Message, message) {
			t.Fatalf("condition %+v, want %s, %s and %q", c, status, reason, message)
		}
	}

	signal, err := os.ReadFile(filepath.Join(dir, "signal"))
	if want := fmt.Sprint(int(unix.SIGKILL)); string(signal) != want || err != nil {
		t.Errorf("when the agent ends the process gets signal %s, want %s: %v", signal, want, err)
	}
	<-changed
	check("False", "Starting", "probe: has started and does not serve yet")
	write := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0); err != nil {
			t.Fatal(err)
		}
		<-changed
	}
	write("ready")
	check("True", "Running", "probe: connected")
	write("fault")
	check("False", "NotConnected", "probe: no broker")
	write("end")
	check("False", "NotRunning", "probe: exit status 1: asked to end")
}

// An integration whose program is not installed does not run, and its condition says what to do.
func TestProgramIsMissing(t *testing.T) {
	changed := make(chan struct{}, 16)
	s := NewSet([]Program{{Name: "probe", Program: "kerb-absent"}}, slog.New(slog.DiscardHandler),
		func() { changed <- struct{}{} })
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { s.Run(ctx) })
	<-changed
	c, _ := s.Condition()
	if c.Reason != "NotRunning" || !strings.Contains(c.Message, "kerb-absent") ||
		!strings.Contains(c.Message, "install it there") {
		t.Errorf("condition %+v", c)
	}
}

// An integration whose program is of another version than the agent runs. Its condition says what to do, and keeps what
// the process reports.
func TestVersionsDiffer(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: integrations drop capabilities")
	}
	test, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := test + "-probe"
	t.Cleanup(func() { os.Remove(program) })
	script := "#!/bin/sh\n[ \"$1\" = --version ] && echo v0.0.1 && exit\nexec " + test + " \"$@\"\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	for agent, reason := range map[string]string{"v0.0.1": "Running", "v0.0.2": "VersionsDiffer", "devel": "Running"} {
		dir := t.TempDir()
		for _, name := range []string{"signal", "ready", "fault", "end"} {
			if err := unix.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		changed := make(chan struct{}, 16)
		s := NewSet([]Program{{Name: "probe", Program: filepath.Base(program), Options: dir}},
			slog.New(slog.DiscardHandler), func() { changed <- struct{}{} })
		s.version = agent
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.Run(ctx) })
		check := func(reason, message string) {
			t.Helper()
			c, _ := s.Condition()
			differs := strings.Contains(c.Message, `probe is of version "v0.0.1" and the agent of version "v0.0.2": install`)
			if c.Reason != reason || !strings.Contains(c.Message, message) || differs != (agent == "v0.0.2") {
				t.Errorf("agent %s: %+v, want %s and %q", agent, c, reason, message)
			}
		}
		if _, err := os.ReadFile(filepath.Join(dir, "signal")); err != nil {
			t.Fatal(err)
		}
		<-changed
		<-changed
		check("Starting", "does not serve yet")
		for _, step := range [][3]string{{"ready", reason, "connected"}, {"fault", "NotConnected", "no broker"}} {
			if err := os.WriteFile(filepath.Join(dir, step[0]), nil, 0); err != nil {
				t.Fatal(err)
			}
			<-changed
			check(step[1], step[2])
		}
		cancel()
		running.Wait()
	}
}
