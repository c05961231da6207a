// SPDX-License-Identifier: Apache-2.0

package lockfile

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/wait"
)

// TestMain makes the test binary a process that locks a name and waits.
func TestMain(m *testing.M) {
	dir := os.Getenv("LOCK_DIR")
	if dir == "" {
		os.Exit(m.Run())
	}
	_, err := Dir(dir).Acquire("other", "of another process")
	fmt.Println(err)
	time.Sleep(time.Minute) // until it is killed
}

// startOther starts a process and returns when it holds the lock.
func startOther(t *testing.T, d Dir) *exec.Cmd {
	t.Helper()
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), "LOCK_DIR="+string(d))
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	if said, err := bufio.NewReader(out).ReadString('\n'); err != nil || said != "<nil>\n" {
		t.Fatalf("the other process says %q, %v", said, err)
	}
	return other
}

func TestLocks(t *testing.T) {
	d := Dir(t.TempDir())
	own, err := d.Acquire("own", "mine")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // killed, and started again
		other := startOther(t, d)
		for _, name := range []string{"own", "other"} {
			if _, err := d.Acquire(name, ""); !errors.Is(err, ErrLocked) {
				t.Errorf("a locked name: %v", err)
			}
		}
		d.check(t)
		_ = other.Process.Kill()
		_ = other.Wait()
		d.check(t, "other: of another process")
		d.check(t)
	}
	if err := Release(own); err != nil {
		t.Error(err)
	}
	d.check(t)
	if left, err := os.ReadDir(string(d)); err != nil || len(left) > 0 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

// check compares what a sweep finds.
func (d Dir) check(t *testing.T, want ...string) {
	t.Helper()
	var got []string
	if err := d.Sweep(func(name, note string) error { got = append(got, name+": "+note); return nil }); err != nil ||
		!cmp.Equal(got, want) {
		t.Errorf("a sweep finds %q, %v, want %q", got, err, want)
	}
}

// What cannot be cleared is found by the next sweep again.
func TestSweepFails(t *testing.T) {
	d := Dir(t.TempDir())
	other := startOther(t, d)
	_ = other.Process.Kill()
	_ = other.Wait()
	bad := errors.New("busy")
	if err := d.Sweep(func(string, string) error { return bad }); !errors.Is(err, bad) {
		t.Errorf("a failed sweep: %v", err)
	}
	d.check(t, "other: of another process")
}

// Sweeps do not remove the file of a name that is being locked.
func TestConcurrentSweeps(t *testing.T) {
	d, done := Dir(t.TempDir()), make(chan struct{})
	go func() {
		defer close(done)
		for i := range 500 {
			f, err := d.Acquire(fmt.Sprint("name", i%3), "")
			if err != nil {
				t.Error(err)
				continue
			}
			if !isAt(f, f.Name()) {
				t.Error("the file of a locked name was removed")
			}
			if err := Release(f); err != nil {
				t.Error(err)
			}
		}
	}()
	for {
		select {
		case <-done:
			return
		default:
		}
		if err := d.Sweep(func(string, string) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
}

// Acquire and other sweeps wait for a slow sweep, and succeed then.
func TestSlowSweep(t *testing.T) {
	d := Dir(t.TempDir())
	other := startOther(t, d)
	_ = other.Process.Kill()
	_ = other.Wait()
	clearing, may := make(chan struct{}), make(chan struct{})
	swept := make(chan error, 1)
	go func() {
		swept <- d.Sweep(func(string, string) error { close(clearing); <-may; return nil })
	}()
	<-clearing
	taken, sweptToo := make(chan error, 1), make(chan error, 1)
	go func() {
		f, err := d.Acquire("other", "")
		if err == nil {
			defer f.Close()
		}
		taken <- err
	}()
	go func() { sweptToo <- d.Sweep(func(string, string) error { return nil }) }()
	end := sync.OnceFunc(func() { close(may) })
	defer end()
	select {
	case err := <-taken:
		t.Fatalf("locked while it was cleared, or failed: %v", err)
	case err := <-sweptToo:
		t.Fatalf("another sweep returns before all is cleared: %v", err)
	case <-time.After(300 * time.Millisecond): // a call that does not wait has probably returned by then
	}
	end()
	if err := errors.Join(<-swept, <-taken, <-sweptToo); err != nil {
		t.Error(err)
	}
}

// A file that processes share is removed when none of them has it open, and one that comes meanwhile has the next one.
func TestShare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "shared")
	remove := func(what string, there bool) {
		t.Helper()
		if err := RemoveUnshared(path); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Lstat(path); (err == nil) != there {
			t.Errorf("%s: %v", what, err)
		}
	}
	remove("before the first one", false)
	share := func() *os.File {
		t.Helper()
		f, err := Share(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	a, b := share(), share()
	remove("two have it", true)
	a.Close()
	remove("one has it", true)
	b.Close()
	earlier, err := os.OpenFile(path, os.O_RDWR, 0) // of a build that does not lock byte 0
	if err != nil {
		t.Fatal(err)
	}
	defer earlier.Close()
	remove("one has no part", true)
	if err := lock(earlier, unix.F_OFD_SETLK, unix.Flock_t{Type: unix.F_WRLCK, Start: 61184, Len: 1}); err != nil {
		t.Fatal(err)
	}
	remove("one has a part", true)
	earlier.Close()
	remove("none has it", false)

	removing, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock(removing, unix.F_OFD_SETLK, unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	next := make(chan error, 1)
	go func() {
		f, err := Share(path)
		if err == nil && !isAt(f, path) {
			err = errors.New("it was removed")
		}
		next <- err
	}()
	info, err := removing.Stat()
	if err != nil {
		t.Fatal(err)
	}
	waits := fmt.Sprintf(":%d 0 0", info.Sys().(*syscall.Stat_t).Ino) // it has opened the file and waits for byte 0
	wait.Until(t, "the next one waits", func() bool {
		locks, _ := os.ReadFile("/proc/locks")
		return slices.ContainsFunc(strings.Split(string(locks), "\n"), func(line string) bool {
			return strings.Contains(line, " -> ") && strings.Contains(line, waits)
		})
	})
	if err := errors.Join(os.Remove(path), removing.Close(), <-next); err != nil {
		t.Error(err)
	}
}
