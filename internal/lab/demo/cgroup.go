// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kerb-edge/kerb/internal/cgroup"
)

// cgroupDir returns the cgroup of demos whose modules are attached to a cgroup, so that they affect no other programs.
func cgroupDir() (string, error) {
	mount, err := cgroup.Mount()
	return filepath.Join(mount, "kerb-demo"), err
}

// enterCgroup moves this process, and thus its children, to a cgroup of the demo, below which the agent attaches
// modules on sockets.
func (d *demo) enterCgroup() error {
	dir, err := cgroupDir()
	if err != nil {
		return err
	}
	if d.cgroupBefore, err = cgroup.Self(); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	d.config = fmt.Sprintf("cgroup: %s\n", dir)
	return moveInto(dir)
}

func moveInto(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
}

// leaveCgroup moves this process back, or to the root if that fails: the demo's cgroup cannot be removed while a
// process is in it.
func (d *demo) leaveCgroup() error {
	before := d.cgroupBefore
	if before == "" {
		return nil
	}
	d.cgroupBefore = ""
	err := moveInto(before)
	if err == nil {
		return nil
	}
	mount, e := cgroup.Mount()
	if e == nil {
		e = moveInto(mount)
	}
	return errors.Join(fmt.Errorf("cannot move this process back into %s, so it goes to the root of cgroups: %w", before,
		err), e)
}

// removeCgroup kills processes that a killed demo left running.
func removeCgroup() error {
	dir, err := cgroupDir()
	if err != nil {
		return nil // the cgroup does not exist
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if self, err := cgroup.Self(); err != nil || self == dir {
		return errors.Join(err, fmt.Errorf("this process is still in %s", dir))
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := os.Remove(dir)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(end) {
			return err
		}
		_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0) // since Linux 5.14
	}
}
