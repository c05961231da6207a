// SPDX-License-Identifier: Apache-2.0

// Package cgrouptest creates cgroups for tests.
package cgrouptest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/cgroup"
)

// MountScript is a shell script that mounts cgroup v2 where container runtimes expect it, for runtimes that the same
// shell starts in its own mount namespace, also on machines with cgroup v1.
const MountScript = `
if [ "$(stat -f -c %T /sys/fs/cgroup)" != cgroup2fs ]; then
	mount --make-private /sys/fs/cgroup && mount --bind /sys/fs/cgroup/unified /sys/fs/cgroup || exit 1
fi
`

// New creates a cgroup below parent (empty for the root) until the test ends, and returns its directory. Its processes
// are killed at the end. New also removes cgroups with this name that killed tests have left.
func New(t testing.TB, below, name string) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: cgroups")
	}
	mount, err := cgroup.Mount()
	if err != nil {
		t.Skip(err)
	}
	if below == "" {
		below = mount
	}
	sweep(t, filepath.Join(below, name))
	dir := filepath.Join(below, fmt.Sprintf("%s-%d", name, os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, dir) })
	return dir
}

func sweep(t testing.TB, path string) {
	dirs, _ := filepath.Glob(path + "-*")
	for _, dir := range dirs {
		pid, err := strconv.Atoi(strings.TrimPrefix(dir, path+"-"))
		if err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			remove(t, dir)
		}
	}
}

// remove kills, and waits for processes that have just ended.
func remove(t testing.TB, dir string) {
	_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) // since Linux 5.14
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return
		}
	}
	t.Errorf("cgroup %s is still in use", dir)
}

// Enter moves the test's process into a cgroup until the test ends. Sockets belong to the cgroup in which they are
// created.
func Enter(t testing.TB, dir string) {
	t.Helper()
	before, err := cgroup.Self()
	if err != nil {
		t.Fatal(err)
	}
	if err := move(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := move(before); err != nil {
			t.Error(err)
		}
	})
}

func move(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
}
