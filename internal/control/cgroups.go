// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/control/sandbox"
)

// controlPrefix begins the names of control planes' cgroups below the cgroup that systemd has delegated to the agent
// (Delegate=memory pids).
const controlPrefix = "control-"

// errNotDelegated reports that the agent's cgroup has not been delegated to it.
var errNotDelegated = errors.New("the agent's cgroup is not delegated to it (Delegate=memory pids in its unit)")

// cgroups creates a cgroup for each control plane process: memory.max counts shared memory, page tables and socket
// buffers alike, and stops a process before it exceeds the limit.
type cgroups struct {
	dir    string // the delegated cgroup
	serial atomic.Int64
}

// newCgroups moves the agent into a leaf of its cgroup, and enables the controllers for the control planes' leaves.
func newCgroups() (*cgroups, error) {
	own, err := cgroup.Self()
	if err != nil {
		return nil, err
	}
	if filepath.Base(own) == cgroup.AgentLeaf && cgroup.Delegated(filepath.Dir(own)) {
		own = filepath.Dir(own) // moved before
	}
	if !cgroup.Delegated(own) {
		return nil, errNotDelegated
	}
	available, err := os.ReadFile(filepath.Join(own, "cgroup.controllers"))
	if err != nil {
		return nil, err
	}
	if !slices.Contains(strings.Fields(string(available)), "memory") {
		return nil, errors.New("cgroup v2 has no memory controller on this node")
	}
	c := &cgroups{dir: own}
	c.sweep()
	agent := filepath.Join(own, cgroup.AgentLeaf)
	if err := os.Mkdir(agent, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(agent, "cgroup.procs"), []byte("0"), 0); err != nil {
		return nil, err
	}
	for _, controller := range []string{"memory", "pids"} {
		err := os.WriteFile(filepath.Join(own, "cgroup.subtree_control"), []byte("+"+controller), 0)
		if err != nil && controller == "memory" {
			return nil, fmt.Errorf("hand the memory controller on: %w", err)
		}
	}
	return c, nil
}

// sweep removes the cgroups that a killed agent has left.
func (c *cgroups) sweep() {
	dirs, _ := filepath.Glob(filepath.Join(c.dir, controlPrefix+"*")) // only the pattern can be wrong
	for _, dir := range dirs {
		_ = unix.Rmdir(dir)
	}
}

// group is the cgroup of one process and its children.
type group struct{ dir string }

// group creates a cgroup with a memory limit. Settings that the kernel does not support are left out.
func (c *cgroups) group(memory int64) (*group, error) {
	g := &group{filepath.Join(c.dir, controlPrefix+strconv.FormatInt(c.serial.Add(1), 10))}
	if err := os.Mkdir(g.dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	for _, setting := range []struct {
		file  string
		value int64
		must  bool
	}{{"memory.max", memory, true}, {"memory.oom.group", 1, false}, {"memory.swap.max", 0, false},
		{"pids.max", sandbox.MaxProcesses, false}} {
		err := os.WriteFile(filepath.Join(g.dir, setting.file), []byte(strconv.FormatInt(setting.value, 10)), 0)
		if err != nil && setting.must {
			return nil, errors.Join(err, unix.Rmdir(g.dir))
		}
	}
	return g, nil
}

// exceeded reports whether the kernel has killed processes because of the memory limit.
func (g *group) exceeded() bool {
	events, _ := os.ReadFile(filepath.Join(g.dir, "memory.events"))
	lines := bufio.NewScanner(bytes.NewReader(events))
	for lines.Scan() {
		if count, found := strings.CutPrefix(lines.Text(), "oom_kill "); found {
			return count != "0"
		}
	}
	return false
}

// remove waits a moment for children, which the kernel kills together with the process.
func (g *group) remove() {
	for end := time.Now().Add(killAfter); errors.Is(unix.Rmdir(g.dir), unix.EBUSY) && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}
