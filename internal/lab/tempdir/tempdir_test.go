// SPDX-License-Identifier: Apache-2.0

package tempdir

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain makes the test binary a process that creates a directory and waits.
func TestMain(m *testing.M) {
	if os.Getenv("TEMPDIR_OWNER") == "" {
		os.Exit(m.Run())
	}
	dir, err := New()
	fmt.Println(dir, err)
	time.Sleep(time.Minute) // until it is killed
}

// Directories of running processes are kept. Those of killed processes are removed with their content and pins, also if
// the directory is in another TMPDIR, or was removed before.
func TestSweep(t *testing.T) {
	var fs unix.Statfs_t
	if err := unix.Statfs(pins, &fs); os.Geteuid() != 0 || err != nil || fs.Type != unix.BPF_FS_MAGIC {
		t.Skip("needs root, and a bpffs")
	}
	own, err := New()
	if err != nil {
		t.Fatal(err)
	}
	for _, cleared := range []bool{false, true} {
		dir, kill := startOwner(t)
		if err := os.WriteFile(filepath.Join(dir, "state"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(PinPath(dir), "modules"), 0o700); err != nil {
			t.Fatal(err)
		}
		sweep(t)
		if !there(own) || !there(dir) || !there(PinPath(dir)) {
			t.Error("a directory in use was removed")
		}
		kill()
		if cleared {
			_ = os.RemoveAll(dir)
		}
		sweep(t)
		if there(dir) || there(PinPath(dir)) {
			t.Error("remains of a killed process exist")
		}
	}
	if err := Remove(own); err != nil || there(own) || there(filepath.Join(string(locks), filepath.Base(own))) {
		t.Errorf("remains of a removed directory exist, %v", err)
	}
}

// startOwner starts another process that creates a directory in another TMPDIR.
func startOwner(t *testing.T) (dir string, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "TEMPDIR_OWNER=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }
	t.Cleanup(kill)
	said, err := bufio.NewReader(out).ReadString('\n')
	dir, made := strings.CutSuffix(said, " <nil>\n")
	if err != nil || !made {
		t.Fatalf("the other process says %q, %v", said, err)
	}
	return dir, kill
}

func sweep(t *testing.T) {
	t.Helper()
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
}

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
