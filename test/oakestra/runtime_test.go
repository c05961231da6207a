// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
	"github.com/kerb-edge/kerb/internal/lab/wait"
)

const documentation = "../../docs/oakestra.md"

// containerd is a containerd with separate state.
type containerd struct {
	*testing.T
	dir, config string
}

// newContainerd starts a containerd that is configured as in docs/oakestra.md.
func newContainerd(t *testing.T) *containerd {
	t.Helper()
	for _, program := range []string{"containerd", "ctr", "runc", "busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: scripts/setup test installs it", err)
		}
	}
	text, err := os.ReadFile(documentation)
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```toml\n(# /etc/containerd/config.toml.*?)```").FindSubmatch(text)
	if block == nil {
		t.Fatalf("%s has no configuration of containerd", documentation)
	}
	c := &containerd{T: t, dir: t.TempDir()}
	c.config = filepath.Join(c.dir, "config.toml")
	config := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\n[grpc]\n  address = %q\n%s", filepath.Join(c.dir, "root"),
		filepath.Join(c.dir, "state"), c.socket(), block[1])
	if err := os.WriteFile(c.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	daemon := exec.Command("unshare", "-m", "--propagation", "unchanged", "sh", "-c",
		cgrouptest.MountScript+`exec containerd --config "$1"`, "sh", c.config)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = daemon.Process.Signal(os.Interrupt); _ = daemon.Wait() })
	wait.Until(t, "containerd answers", func() bool { return c.command("version").Run() == nil })
	return c
}

func (c *containerd) socket() string { return filepath.Join(c.dir, "sock") }

func (c *containerd) command(args ...string) *exec.Cmd {
	return exec.CommandContext(context.Background(), "ctr", append([]string{"--address", c.socket()}, args...)...)
}

func (c *containerd) must(args ...string) string {
	c.Helper()
	out, err := c.command(args...).CombinedOutput()
	if err != nil {
		c.Fatalf("ctr %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// runtimes returns the runtimes that NodeEngine advertises: the tables of that name in the configuration.
func (c *containerd) runtimes() (names []string) {
	c.Helper()
	text, err := os.ReadFile(c.config)
	if err != nil {
		c.Fatal(err)
	}
	tables := regexp.MustCompile(`(?m)^\[plugins\.\S+\.containerd\.runtimes\.(\S+)\]$`)
	for _, table := range tables.FindAllSubmatch(text, -1) {
		names = append(names, string(table[1]))
	}
	return names
}

// run starts a container as NodeEngine does: with the program of the runtime's name, by runc's shim. It returns the
// PID.
func (c *containerd) run(id, runtime string) int {
	c.Helper()
	program, err := exec.LookPath(runtime)
	if err != nil {
		c.Fatal(err)
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		c.Fatal(err)
	}
	root := filepath.Join(c.dir, "rootfs")
	for _, dir := range []string{"bin", "proc", "sys", "dev", "tmp", "etc"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			c.Fatal(err)
		}
	}
	if out, err := exec.Command("cp", busybox, filepath.Join(root, "bin/busybox")).CombinedOutput(); err != nil {
		c.Fatalf("%v: %s", err, out)
	}
	cgroup := fmt.Sprintf("/kerb-runtime-%d", os.Getpid())
	c.Cleanup(func() {
		_ = c.command("tasks", "kill", "-s", "KILL", id).Run()
		wait.Until(c.T, "the container ends", func() bool { return c.command("tasks", "rm", id).Run() == nil })
		c.must("containers", "rm", id)
		_ = os.Remove("/sys/fs/cgroup/unified" + cgroup)
		_ = os.Remove("/sys/fs/cgroup" + cgroup)
	})
	c.must("run", "-d", "--runtime", "io.containerd.runc.v2", "--runc-binary", program, "--cpu-shares", "0", "--cgroup",
		cgroup, "--rootfs", root, id, "/bin/busybox", "sleep", "600")
	for line := range strings.Lines(c.must("tasks", "ls")) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == id {
			pid, err := strconv.Atoi(fields[1])
			if err != nil {
				c.Fatal(err)
			}
			return pid
		}
	}
	c.Fatalf("containerd has no task %s", id)
	return 0
}

// A service whose SLA names the runtime that a worker advertises as in docs/oakestra.md starts there, and is connected.
func TestPlacementByRuntime(t *testing.T) {
	if os.Getenv("KERB_OAKESTRA_STEPS") == "" {
		t.Skip("needs containerd: make test-oakestra")
	}
	m := newCluster(t, 1)
	m.add("app.ns.server.test", m.workers[0])
	c := newContainerd(t)
	names := c.runtimes()
	if !slices.Equal(names, []string{"kerb-runc"}) {
		t.Fatalf("NodeEngine advertises %q", names)
	}
	runc, err := exec.LookPath("runc")
	if err == nil {
		err = os.Symlink(runc, filepath.Join(c.dir, names[0]))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", c.dir+":"+os.Getenv("PATH"))

	const name = "app.ns.placed.test"
	m.cluster.Create(name)
	m.cluster.Schedule(name, 0)
	pid := c.run("placed", names[0])
	if status, text, err := m.workers[0].call("/container/deploy", deployment(name, 0, pid)); err != nil ||
		status != http.StatusOK {
		t.Fatalf("deploy: %d %s %v", status, text, err)
	}
	placed := &container{identity: name, cmd: &exec.Cmd{Process: &os.Process{Pid: pid}}}
	got, err := exchange(m.dial(placed, "udp", m.cluster.Addresses("app.ns.server.test")[0]), uniqueText(), lostAfter)
	if own := m.cluster.InstanceAddresses(name, 0)[0]; err != nil || got.client != own {
		t.Errorf("datagram of the container: %v %v, want it from %s", got, err, own)
	}
	m.workers[0].undeploy(name, 0)
}
