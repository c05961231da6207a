// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
)

const (
	bootTime = 2 * time.Minute // under load
	// With cgroup v1 alongside v2, systemd-nspawn creates the container's cgroups in systemd's own hierarchy, too, and
	// does not remove them.
	legacyHierarchy = "/sys/fs/cgroup/systemd"
)

// machine is a container with the programs of this machine, an empty /etc and /var, and its own systemd, network and
// bpffs.
type machine struct {
	*testing.T
	systemd int // PID of its process 1
	console *bytes.Buffer
}

// boot starts a container with these units in /etc/systemd/system, alongside the shipped one.
func boot(t *testing.T, kerb string, units map[string]string) *machine {
	t.Helper()
	bin, etc := t.TempDir(), t.TempDir()
	shipped, err := os.ReadFile("../../deploy/systemd/kerb.service")
	must(t, err)
	must(t, os.Link(kerb, filepath.Join(bin, "kerb")))
	write(t, filepath.Join(etc, "kerb.service"), string(shipped))
	for name, text := range units {
		write(t, filepath.Join(etc, name), text)
	}
	return bootWith(t, "--directory=/", "--volatile=yes", "--bind="+bin+":/usr/local/bin",
		"--bind="+etc+":/etc/systemd/system")
}

// bootWith starts a container with further options of systemd-nspawn.
func bootWith(t *testing.T, options ...string) *machine {
	t.Helper()
	m := &machine{T: t, console: &bytes.Buffer{}}
	name := fmt.Sprintf("kerb-unit-%d", os.Getpid())
	cmd := exec.Command("systemd-nspawn", slices.Concat([]string{"--quiet", "--register=no", "--keep-unit",
		"--private-network", "--capability=all", "--machine=" + name, "--console=pipe", "--link-journal=no"}, options,
		[]string{"--boot", "systemd.unit=multi-user.target",
			"systemd.mask=systemd-networkd-wait-online.service"})...)
	cmd.Env = append(os.Environ(), "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1", "SYSTEMD_SECCOMP=0")
	cmd.Stdout, cmd.Stderr = m.console, m.console
	cgroup := cgrouptest.New(t, "", "kerb-unit")
	into, err := os.Open(cgroup)
	must(t, err)
	defer into.Close()
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(into.Fd()), Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		empty(cgroup)
		legacy := filepath.Join(legacyHierarchy, filepath.Base(cgroup))
		empty(legacy)
		if err := rmdir(legacy); err != nil && !errors.Is(err, syscall.ENOENT) {
			t.Errorf("remove cgroup %s: %v", legacy, err)
		}
		if t.Failed() {
			t.Logf("console: %s", m.console)
		}
	})
	m.await("systemd is up", func() (bool, string) {
		if m.systemd = child(cmd.Process.Pid); m.systemd == 0 {
			return false, "no process"
		}
		state, _ := m.try("systemctl", "is-system-running")
		return state == "running" || state == "degraded", state
	})
	m.do("mount", "-o", "remount,rw", "/sys") // a part of sysfs, as containers have it
	m.do("mkdir", "-p", "/sys/fs/bpf")
	m.do("mount", "-t", "bpf", "-o", "mode=700", "bpf", "/sys/fs/bpf")
	return m
}

// empty kills the remaining processes of a cgroup, and removes the cgroups below it.
func empty(dir string) {
	_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	var below []string
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != dir {
			below = append(below, path)
		}
		return nil
	})
	for _, path := range slices.Backward(below) {
		_ = rmdir(path)
	}
}

// rmdir removes a cgroup. The kernel needs a moment after the last process has ended.
func rmdir(path string) error {
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err := syscall.Rmdir(path); err != syscall.EBUSY || time.Now().After(end) {
			return err
		}
	}
}

func child(pid int) int {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, field := range strings.Fields(string(text)) {
		if id, err := strconv.Atoi(field); err == nil {
			return id
		}
	}
	return 0
}

// await waits until is returns true; on failure, its text is printed.
func (m *machine) await(what string, is func() (bool, string)) {
	m.Helper()
	found := ""
	for end := time.Now().Add(bootTime); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		yes, now := is()
		if yes {
			return
		}
		found = now
	}
	m.Fatalf("not in %v: %s: %s", bootTime, what, found)
}

// try runs a command in the container.
func (m *machine) try(command ...string) (string, error) {
	args := append([]string{"-t", strconv.Itoa(m.systemd), "-m", "-u", "-i", "-n", "-p", "-C", "--"}, command...)
	cmd := exec.Command("nsenter", args...)
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/usr/sbin", "HOME=/root"}
	begin := time.Now()
	out, err := cmd.CombinedOutput()
	if took := time.Since(begin); took > time.Second {
		m.Logf("%s took %v", strings.Join(command, " "), took.Round(time.Millisecond))
	}
	return strings.TrimSpace(string(out)), err
}

func (m *machine) do(command ...string) string {
	m.Helper()
	out, err := m.try(command...)
	if err != nil {
		log, _ := m.try("journalctl", "--no-pager", "-n", "40", "-u", "kerb")
		m.Fatalf("%s: %v: %s\n%s", strings.Join(command, " "), err, out, log)
	}
	return out
}

// file writes a file that commands in the container find under the same name.
func (m *machine) file(name, text string) string {
	m.Helper()
	write(m.T, fmt.Sprintf("/proc/%d/root/run/%s", m.systemd, name), text)
	return "/run/" + name
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o600))
}
