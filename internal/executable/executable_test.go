// SPDX-License-Identifier: Apache-2.0

package executable

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// What programs of Debian 12, and Node, make of their sockets.
func TestPrograms(t *testing.T) {
	var e Examiner
	for path, want := range map[string][]string{
		"/usr/sbin/nginx":                       {Queued},
		"/usr/bin/redis-server":                 nil,
		"/usr/bin/redis-benchmark":              nil,
		"/usr/sbin/haproxy":                     {WaitAll, Splice},
		"/usr/lib/jvm/java-*/lib/libnet.so":     {Queued},
		"/usr/lib/jvm/java-*/bin/java":          nil,
		"/usr/bin/node":                         nil,
		"/usr/bin/curl":                         nil,
		"/usr/lib/*-linux-gnu/libcurl.so.4":     nil,
		"/usr/lib/*-linux-gnu/libssl.so.3":      nil,
		"/usr/lib/*-linux-gnu/libcrypto.so.3":   nil,
		"/usr/lib/*-linux-gnu/libc.so.6":        nil, // has every call
		"/usr/lib/postgresql/*/bin/postgres":    nil,
		"/usr/bin/python3":                      {Splice}, // os.splice
		"/usr/bin/wrk":                          {Queued},
		"/usr/lib/git-core/git-remote-http":     nil,
		"/usr/lib/*-linux-gnu/libstdc++.so.6.*": nil,
	} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			found, err := filepath.Glob(path)
			if err != nil || len(found) == 0 {
				t.Skip("not installed")
			}
			c, _, err := e.named(found[0])
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(c.uses, want) {
				t.Errorf("uses %v, want %v", c.uses, want)
			}
		})
	}
}

// Processes are known by what they execute and by the libraries that they have.
func TestProcesses(t *testing.T) {
	sdktest.NeedRoot(t)
	for _, c := range []struct {
		name, path string
		uses       []string
		golang     bool
		command    []string
	}{
		{"redis", "redis", nil, false, []string{"redis-server", "--port", "0", "--unixsocket", "socket", "--save", ""}},
		{"node", "node", nil, false, []string{"node", "-e", "require('net').createServer().listen('" + t.TempDir() +
			"/socket')"}},
		{"java", "rmiregistry", []string{Queued}, false, []string{rmiRegistry(), "0"}},
		{"go", "proxy", []string{Splice}, true, []string{goProxy(t), "127.0.0.1:0", "127.0.0.1:1"}},
		{"c", "sleep", nil, false, []string{"sleep", "60"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pid := started(t, c.command)
			var e Examiner
			facts := settled(t, &e, pid, c.path, c.uses)
			if (facts.Go != "") != c.golang {
				t.Errorf("Go %q", facts.Go)
			}
			var st unix.Stat_t
			if err := unix.Stat(facts.Path, &st); err != nil || facts.Inode != st.Ino ||
				facts.Device != kernelDevice(uint64(st.Dev)) {
				t.Errorf("device %#x, inode %d of %s, which has %#x, %d (%v)", facts.Device, facts.Inode, facts.Path,
					st.Dev, st.Ino, err)
			}
		})
	}
}

func started(t *testing.T, command []string) int {
	t.Helper()
	if _, err := exec.LookPath(command[0]); err != nil {
		t.Skip("not installed")
	}
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = t.TempDir()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

// settled waits until the process has become the program and mapped its libraries: until it is known to use what it
// should, and that has not changed for a while.
func settled(t *testing.T, e *Examiner, pid int, program string, uses []string) (facts Facts) {
	t.Helper()
	var err error
	var since time.Time // zero while the facts are others
	wait.Until(t, fmt.Sprintf("process %d is %s that uses %v", pid, program, uses), func() bool {
		facts, err = e.Examine(pid, 0)
		if err != nil || !strings.Contains(filepath.Base(facts.Path), program) || !slices.Equal(facts.Uses, uses) {
			since = time.Time{}
			return false
		}
		if since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) >= 400*time.Millisecond
	}, func() any { return facts }, func() any { return err })
	return facts
}

func goProxy(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "proxy")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", path, "./testdata/proxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("no Go compiler: %v: %s", err, out)
	}
	return path
}

// rmiRegistry is a Java program that listens, and that comes with the run-time environment.
func rmiRegistry() string {
	found, _ := filepath.Glob("/usr/lib/jvm/java-*/bin/rmiregistry")
	return append(found, "rmiregistry")[0]
}

// Another process that has the number later is not taken for the one that was meant.
func TestStart(t *testing.T) {
	sdktest.NeedRoot(t)
	pid := started(t, []string{"sleep", "60"})
	dir := "/proc/self"
	begun, err := startOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	var e Examiner
	if _, err := e.Examine(os.Getpid(), begun*tick+tick/2); err != nil {
		t.Error(err)
	}
	if _, err := e.Examine(os.Getpid(), (begun+1)*tick); !errors.Is(err, ErrExited) {
		t.Errorf("%v, want %v", err, ErrExited)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); !errors.Is(err, ErrExited); time.Sleep(time.Millisecond) {
		if _, err = e.Examine(pid, 0); time.Now().After(end) {
			t.Fatalf("a process that was killed: %v, want %v", err, ErrExited)
		}
	}
}

// An agent in a separate PID namespace, as in a container, gets an error that says why it finds no process.
func TestElsewhere(t *testing.T) {
	const child = "KERB_TEST_PID_NAMESPACE"
	if os.Getenv(child) != "" {
		var e Examiner
		if _, err := e.Examine(os.Getppid(), 1); !errors.Is(err, ErrExited) || !errors.Is(err, ErrPIDNamespace) {
			t.Error(err)
		}
		return
	}
	sdktest.NeedRoot(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestElsewhere$")
	cmd.Env = append(os.Environ(), child+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// A changed file is another one, an unchanged one is examined once.
func TestRemembers(t *testing.T) {
	var e Examiner
	path := filepath.Join(t.TempDir(), "program")
	data, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	first, id, err := e.named(path)
	if err != nil {
		t.Fatal(err)
	}
	if again, _, _ := e.named(path); again != first {
		t.Error("examined twice")
	}
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	if _, now, err := e.named(path); now == id || !errors.Is(err, errNoELF) {
		t.Errorf("%v, want %v", err, errNoELF)
	}
}

// named examines the file of a name.
func (e *Examiner) named(name string) (*contents, identity, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, identity{}, err
	}
	defer f.Close()
	return e.file(f)
}

// Paths come from the author of the file, and are printed on terminals.
func TestPrintable(t *testing.T) {
	for path, want := range map[string]string{"/usr/bin/nginx": "/usr/bin/nginx", "/\x1b[2J\nü": "/?[2J?ü",
		"/\xff": "/?"} {
		if got := printable(path); got != want {
			t.Errorf("%q is shown as %q, want %q", path, got, want)
		}
	}
}
