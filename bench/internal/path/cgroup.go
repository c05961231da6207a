// SPDX-License-Identifier: Apache-2.0

package path

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Group is a cgroup (version 2) for the processes that a measurement is about. The CPU time of a process includes the work
// that the kernel does for the packets that it sends, on its own CPU time.
type Group struct {
	dir    string
	handle *os.File
}

// NewGroup makes a group that is called like the lab.
func NewGroup(name string) (*Group, error) {
	mount, err := cgroup2()
	if err != nil {
		return nil, err
	}
	g := &Group{dir: filepath.Join(mount, name)}
	_ = os.Remove(g.dir) // of a killed run
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	g.handle, err = os.Open(g.dir)
	return g, err
}

// cgroup2 finds the mount: machines that also run cgroup version 1 have it elsewhere than at /sys/fs/cgroup.
func cgroup2() (string, error) {
	mounts, err := os.Open("/proc/mounts")
	if err != nil {
		return "", err
	}
	defer mounts.Close()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) > 2 && f[2] == "cgroup2" {
			return f[1], nil
		}
	}
	return "", errors.New("cgroup version 2 is not mounted, by which CPU time is measured: mount -t cgroup2 none DIR")
}

// Adopt has a command that is not started yet run in the group.
func (g *Group) Adopt(cmd *exec.Cmd) *exec.Cmd {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(g.handle.Fd())
	return cmd
}

// CPU is the time that the group has used so far.
func (g *Group) CPU() (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join(g.dir, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "usage_usec "); ok {
			us, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return time.Duration(us) * time.Microsecond, err
		}
	}
	return 0, fmt.Errorf("%s/cpu.stat has no usage_usec", g.dir)
}

// Close removes the group, whose processes have ended.
func (g *Group) Close() error {
	g.handle.Close()
	var err error
	for range 100 {
		if err = os.Remove(g.dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		time.Sleep(10 * time.Millisecond) // a process that was killed is on its way out
	}
	return err
}
