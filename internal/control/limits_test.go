// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/lab/cgrouptest"
	"github.com/kerb-edge/kerb/internal/pkgs"
)

// attackArgument makes the test binary a hostile control plane.
const attackArgument = "attack"

func TestMain(m *testing.M) {
	Intercept(nil)
	if len(os.Args) == 4 && os.Args[1] == attackArgument {
		// What is taken is held for a minute. The timer starts before the attack: the runtime's first
		// timer needs descriptors, and the attack may take all.
		time.AfterFunc(time.Minute, func() { os.Exit(0) })
		fmt.Println("attack:", attacks[os.Args[2]](os.Args[3]))
		select {}
	}
	os.Exit(m.Run())
}

// hasRaceDetector reports whether the race detector takes memory of this process, which counts, too.
var hasRaceDetector = func() bool {
	build, _ := debug.ReadBuildInfo()
	return build != nil && slices.Contains(build.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}()

// memoryLimit is that of attack.
func memoryLimit() int64 {
	if hasRaceDetector {
		return 48 << 20
	}
	return 32 << 20
}

// attacks take more than the limits of attack, in ways that no limit of a process counts. They return why they could
// not.
var attacks = map[string]func(state string) error{
	"memory":  anonymous,
	"tmpfs":   mappedFile,
	"sockets": socketBuffersFull,
	"files":   func(state string) error { return manyFiles(state, 20, 1<<20, nil) },
	"inodes":  func(state string) error { return manyFiles(state, 2000, 0, nil) },
	"removed": func(state string) error { return manyFiles(state, 20, 1<<20, func(*os.File) error { return nil }) },
	"mapped":  func(state string) error { return manyFiles(state, 20, 1<<20, mapAndClose) },
	"nested":  nested,
}

func anonymous(string) error {
	held, err := unix.Mmap(-1, 0, 200<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|
		unix.MAP_POPULATE)
	_ = held
	return err
}

func mappedFile(state string) error {
	f, err := os.Create(filepath.Join(state, "shared"))
	if err != nil {
		return err
	}
	if err := f.Truncate(2 * memoryLimit()); err != nil {
		return err
	}
	_, err = unix.Mmap(int(f.Fd()), 0, int(2*memoryLimit()), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE)
	return err
}

func socketBuffersFull(string) error {
	for {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		for _, fd := range fds {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 8<<20)
			for err == nil {
				_, err = unix.Write(fd, make([]byte, 32<<10))
			}
			err = nil
		}
	}
}

// manyFiles writes files; those that hold is given are removed after it, and stay open unless it closes them.
func manyFiles(state string, count, size int, hold func(*os.File) error) error {
	for i := range count {
		f, err := os.Create(filepath.Join(state, fmt.Sprint(i)))
		if err != nil {
			return err
		}
		for rest := size; rest > 0 && err == nil; rest -= 1 << 20 {
			_, err = f.Write(make([]byte, 1<<20))
		}
		if err != nil {
			return err
		}
		if hold == nil {
			f.Close()
			continue
		}
		if err := hold(f); err != nil {
			return err
		}
		os.Remove(f.Name())
		kept = append(kept, f)
	}
	return nil
}

var kept []*os.File

func mapAndClose(f *os.File) error {
	_, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	f.Close()
	return err
}

// nested hides files below a path that is too long to name.
func nested(state string) error {
	for range 30 {
		name := strings.Repeat("d", 200)
		if err := os.Mkdir(name, 0o700); err != nil {
			return err
		}
		if err := os.Chdir(name); err != nil {
			return err
		}
	}
	return manyFiles(".", 20, 1<<20, nil)
}

// attack runs one until its process ends, and returns why that was.
func attack(t *testing.T, m *Manager, kind, state string, network bool) string {
	t.Helper()
	disk := int64(8 << 20)
	if kind == "tmpfs" {
		disk = 4 * memoryLimit()
	}
	p, err := m.launch(launch{name: kind, spec: sandbox.Spec{Command: []string{self, attackArgument, kind, state},
		Dir: state, UID: lastUser,
		Read: []string{self}, Write: []string{state}, Memory: memoryLimit(), Disk: disk, Network: network,
		Env: []string{"GOGC=20"}}, state: state})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(2 * time.Minute):
		p.end("nothing was done against it")
		<-p.ended
	}
	return p.why().Error()
}

func testManager(t *testing.T) *Manager {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: users and namespaces")
	}
	dir, err := os.MkdirTemp("", "control-limits-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	m, err := New(Options{Run: filepath.Join(dir, "run"), State: filepath.Join(dir, "state"),
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	if m.Problem() != nil {
		t.Fatal(m.Problem())
	}
	return m
}

// A control plane that takes more memory or disk than its manifest allows is ended, or refused what it asks for,
// whatever kind it is.
func TestLimits(t *testing.T) {
	m := testManager(t)
	for kind, want := range map[string]string{
		"memory": "control.memory", "tmpfs": "control.memory", "sockets": "control.memory",
		"files": "control.disk", "inodes": "control.disk", "removed": "control.disk", "mapped": "control.disk",
		"nested": "control.disk",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			if kind == "memory" && hasRaceDetector {
				t.Skip("the race detector's data and that of the attack are more than the kernel gives the process")
			}
			state := filepath.Join(m.opts.State, "modules", kind)
			if kind == "tmpfs" {
				state = tmpfs(t, state)
			}
			if why := attack(t, m, kind, state, false); !strings.Contains(why, want) {
				t.Errorf("ended because it %s, want %s", why, want)
			}
		})
	}
}

func tmpfs(t *testing.T, dir string) string {
	t.Helper()
	if err := os.MkdirAll(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", dir, "tmpfs", 0, "mode=711"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return filepath.Join(dir, "state")
}

// Where systemd has delegated a cgroup with the memory controller, the kernel counts all memory and ends who has too
// much.
func TestMemoryCgroup(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: cgroups")
	}
	dir := cgrouptest.New(t, "", "kerb-control")
	if err := unix.Setxattr(dir, "trusted.delegate", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	// once the test has left it, and before its parent goes
	t.Cleanup(func() { _ = unix.Rmdir(filepath.Join(dir, cgroup.AgentLeaf)) })
	if mount, err := cgroup.Mount(); err == nil && os.Getenv("KERB_MATRIX") != "" { // elsewhere the root is not ours
		_ = os.WriteFile(filepath.Join(mount, "cgroup.subtree_control"), []byte("+memory +pids"), 0)
	}
	cgrouptest.Enter(t, dir)
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil || !strings.Contains(string(controllers), "memory") {
		t.Skipf("no memory controller in cgroup v2 here: %q %v", controllers, err)
	}
	m := testManager(t)
	if m.cgroups == nil {
		t.Fatal("the delegated cgroup is not used")
	}
	for _, kind := range []string{"memory", "sockets", "tmpfs"} {
		state := filepath.Join(m.opts.State, "modules", kind)
		if kind == "tmpfs" {
			state = tmpfs(t, state)
		}
		if why := attack(t, m, kind, state, kind == "sockets"); !strings.Contains(why, "control.memory") {
			t.Errorf("%s: ended because it %s", kind, why)
		}
	}
	left, _ := filepath.Glob(filepath.Join(dir, controlPrefix+"*"))
	for end := time.Now().Add(10 * time.Second); len(left) > 0 &&
		time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		left, _ = filepath.Glob(filepath.Join(dir, controlPrefix+"*"))
	}
	if len(left) > 0 {
		t.Errorf("cgroups are left: %v", left)
	}
}

// A package cannot ask for more than the node allows.
func TestCeilings(t *testing.T) {
	m := &Manager{opts: Options{State: "/", Limits: Limits{Memory: 512 << 20, Disk: 1 << 30}}}
	for _, c := range []struct {
		control pkgs.Control
		want    string
	}{
		{pkgs.Control{Memory: "9999999Gi"}, "limits.controlMemory"},
		{pkgs.Control{Memory: "513Mi"}, "512.0 MiB"},
		{pkgs.Control{Disk: "2Gi"}, "limits.controlDisk"},
	} {
		p := &pkgs.Package{Manifest: pkgs.Manifest{Name: "greedy", Control: &c.control}}
		if _, err := m.Supervise("m", p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.control, err)
		}
	}
	if err := m.opts.Limits.check(
		&pkgs.Package{Manifest: pkgs.Manifest{Control: &pkgs.Control{Memory: "512Mi", Disk: "1Gi"}}}); err != nil {
		t.Error(err)
	}
}
