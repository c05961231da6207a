// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// cgroupRoot is where version 2 is mounted: not at /sys/fs/cgroup on machines that also have version 1.
var cgroupRoot = sync.OnceValue(func() string {
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return f[1]
		}
	}
	return "/sys/fs/cgroup"
})

// newCgroup makes one that is removed when its processes have gone.
func newCgroup(t *testing.T) *os.File {
	t.Helper()
	path, err := os.MkdirTemp(cgroupRoot(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Close()
		if err := removeCgroup(path); err != nil {
			t.Error(err)
		}
	})
	return f
}

// removeCgroup waits for processes that were killed a moment ago.
func removeCgroup(path string) (err error) {
	for range 100 {
		if err = os.Remove(path); err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

// sweepCgroups removes those of runs that were killed.
func sweepCgroups() (err error) {
	paths, _ := filepath.Glob(filepath.Join(cgroupRoot(), prefix+"*"))
	for _, path := range paths {
		_ = os.WriteFile(filepath.Join(path, "cgroup.kill"), []byte("1"), 0)
		err = errors.Join(err, removeCgroup(path))
	}
	return err
}
