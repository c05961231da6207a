// SPDX-License-Identifier: Apache-2.0

package path

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kerb-edge/kerb/internal/cgroup"
)

// Group is a cgroup (version 2) for the measured processes. Their CPU time includes the kernel's work for the packets
// that they send.
type Group struct {
	dir    string
	handle *os.File
}

// NewGroup creates a group with the name of the lab.
func NewGroup(name string) (*Group, error) {
	mount, err := cgroup.Mount()
	if err != nil {
		return nil, err
	}
	g := &Group{dir: filepath.Join(mount, name)}
	_ = os.Remove(g.dir) // left by a killed run
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	g.handle, err = os.Open(g.dir)
	return g, err
}

// Dir returns the directory of the cgroup.
func (g *Group) Dir() string { return g.dir }

// Adopt makes a command, which has not started yet, run in the group.
func (g *Group) Adopt(cmd *exec.Cmd) *exec.Cmd {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(g.handle.Fd())
	return cmd
}

// CPU returns the CPU time used by the group.
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

// Close removes the group. Its processes must have exited.
func (g *Group) Close() error {
	g.handle.Close()
	var err error
	for range 100 {
		if err = os.Remove(g.dir); err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		time.Sleep(10 * time.Millisecond) // a killed process is exiting
	}
	return err
}

// Processes returns the processes in the group.
func (g *Group) Processes() (pids []int, err error) {
	text, err := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	for _, field := range strings.Fields(string(text)) {
		pid, wrong := strconv.Atoi(field)
		pids, err = append(pids, pid), errors.Join(err, wrong)
	}
	return pids, err
}
