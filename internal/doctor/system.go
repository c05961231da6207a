// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/cgroup"
	"github.com/kerb-edge/kerb/internal/control/sandbox"
	"github.com/kerb-edge/kerb/internal/dataplane/probe"
	"github.com/kerb-edge/kerb/internal/sockprobe"
)

// What the state directory should have free, in bytes: the store is rewritten
// page by page and wants some room besides itself.
const (
	lowSpace  = 64 << 20
	fullSpace = 4 << 20
)

// lowFiles is a limit of open files that many services exceed.
const lowFiles = 2048

func mounts(opts Options) []Check {
	return []Check{bpffs(opts.Paths.BPF), cgroup2()}
}

// confinement reports what this kernel lacks to keep control planes from all else.
func confinement(Options) []Check {
	return []Check{judgeConfinement(sandbox.Reasons())}
}

func judgeConfinement(lacks []string) Check {
	const name = "control planes"
	if len(lacks) == 0 {
		return ok(name, "confined by Landlock, seccomp and namespaces")
	}
	return bad(Warn, name, newer("6.12")+"; or deploy only packages that you would run as any user", "%s",
		strings.Join(lacks, "; "))
}

// redirected reports how sockets whose bytes are redirected differ from TCP on this kernel: what the agent has found
// out, or else a test of its own.
func redirected(opts Options) []Check {
	const name = "redirected sockets"
	result, known := sockprobe.Cached(opts.Paths.SocketFacts())
	if !known {
		var err error
		if result, err = sockprobe.Run(context.Background()); err != nil {
			return []Check{bad(Warn, name, "sudo kerb doctor", "cannot be tested: modules that redirect bytes between sockets "+
				"exclude more programs than necessary: %v", err)}
		}
	}
	var others []string
	for _, c := range result.Checks {
		if !c.OK {
			others = append(others, c.Name)
		}
	}
	if len(others) == 0 {
		return []Check{ok(name, "behave as TCP does")}
	}
	return []Check{ok(name, "differ from TCP in %s: modules leave programs that rely on these on plain TCP "+
		"(docs/accelerator.md)", strings.Join(others, ", "))}
}

// bpffs wants the directory of pins, or the nearest one above that exists, to
// be on a bpffs, and pins something there.
func bpffs(dir string) Check {
	const name = "bpffs"
	there := existing(dir)
	var vfs unix.Statfs_t
	if err := unix.Statfs(there, &vfs); err != nil {
		return bad(Fail, name, "ls -ld "+there, "%s: %v", there, err)
	}
	if vfs.Type != unix.BPF_FS_MAGIC {
		mount := bpffsRoot(dir)
		return bad(Fail, name, fmt.Sprintf("mount -t bpf -o mode=700 bpf %s", mount),
			"%s is not on a bpffs: programs would be unloaded when the agent exits", dir)
	}
	if err := probe.Pin(pinRoom(there)); err != nil {
		return bad(Fail, name, "sudo kerb doctor; mount -o remount,rw "+there, "%s: cannot pin: %s", there, probe.Reason(err))
	}
	return ok(name, "%s", there)
}

// pinRoom is the directory above, so as not to surprise an agent that reads its
// own, unless that is not on the bpffs any more.
func pinRoom(dir string) string {
	var vfs unix.Statfs_t
	above := filepath.Dir(dir)
	if unix.Statfs(above, &vfs) == nil && vfs.Type == unix.BPF_FS_MAGIC {
		return above
	}
	return dir
}

// bpffsRoot is where to mount: the place that systemd and everybody else uses,
// if the pins are below it.
func bpffsRoot(dir string) string {
	const usual = "/sys/fs/bpf"
	if dir == usual || strings.HasPrefix(dir, usual+"/") {
		return usual
	}
	return dir
}

// existing is the nearest directory at or above path that exists.
func existing(path string) string {
	for path != "/" && path != "." {
		if _, err := os.Stat(path); err == nil {
			break
		}
		path = filepath.Dir(path)
	}
	return path
}

func cgroup2() Check {
	const name = "cgroup v2"
	mount, err := cgroup.Mount()
	if err != nil {
		return bad(Warn, name, "mkdir -p /run/kerb/cgroup2 && mount -t cgroup2 none /run/kerb/cgroup2",
			"%v: modules on sockets cannot run", err)
	}
	if err := cgroup.CheckView(); err != nil {
		return bad(Warn, name, "mount the node's /sys/fs/cgroup in the agent's container, anywhere and read only", "%s: %v",
			mount, err)
	}
	return ok(name, "%s", mount)
}

func limits(opts Options) []Check {
	checks := []Check{space(opts.Paths.State), openFiles()}
	return append(checks, others()...)
}

// space checks that the state directory, or its nearest parent that exists, is writable and has room. Access is checked
// with unix.Access, so that nothing is created.
func space(dir string) Check {
	const name = "state directory"
	there := existing(dir)
	var vfs unix.Statfs_t
	if err := unix.Statfs(there, &vfs); err != nil {
		return bad(Fail, name, "ls -ld "+there, "%s: %v", there, err)
	}
	if vfs.Flags&unix.ST_RDONLY != 0 {
		return bad(Fail, name, "mount -o remount,rw "+there, "%s is on a read-only file system", dir)
	}
	if err := unix.Access(there, unix.W_OK); err != nil {
		return bad(Fail, name, "sudo kerb doctor; ls -ld "+there, "%s cannot be written: %v", there, err)
	}
	return judgeSpace(dir, there, vfs.Bavail*uint64(vfs.Bsize))
}

func judgeSpace(dir, there string, free uint64) Check {
	const name = "state directory"
	remedy := fmt.Sprintf("df -h %s; make room, or set paths.state in /etc/kerb/kerb.yaml", there)
	switch {
	case free < fullSpace:
		return bad(Fail, name, remedy, "%s: disk full (%s free): no change can be saved", dir, size(free))
	case free < lowSpace:
		return bad(Warn, name, remedy, "%s: only %s free", dir, size(free))
	}
	return ok(name, "%s: %s free", dir, size(free))
}

// size in the units that people read.
func size(bytes uint64) string {
	const units = "KMGTPE"
	if bytes == math.MaxUint64 {
		return "unlimited"
	}
	if bytes < 1024 {
		return fmt.Sprintf("%d B", bytes)
	}
	value, unit := float64(bytes)/1024, 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", value, units[unit])
}

func openFiles() Check {
	const name = "open files"
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return bad(Warn, name, "ulimit -n", "cannot read the limit: %v", err)
	}
	if limit.Cur < lowFiles {
		return bad(Warn, name, "ulimit -n 65536 (in the unit: LimitNOFILE=65536)", "limit of %d: little for many services",
			limit.Cur)
	}
	return ok(name, "limit of %d", limit.Cur)
}

// agents that work on the same hooks, by how the names of their programs begin.
var agents = []struct{ prefix, name string }{
	{"cil_", "Cilium"},
	{"cali", "Calico"},
	{"xdp_dispatcher", "libxdp or bpfman"},
	{"tc_dispatcher", "bpfman"},
	{"xdp_packet_func", "loxilb"},
	{"tc_packet_func", "loxilb"},
	{"balancer_ingres", "Katran"},
}

// others reports agents that may be there; Kerb runs alongside them.
func others() []Check {
	const name = "other agents"
	names, err := probe.ProgramNames()
	if err != nil {
		return []Check{bad(Warn, name, "sudo kerb doctor", "cannot list programs: %s", probe.Reason(err))}
	}
	found := recognize(names)
	if len(found) == 0 {
		return []Check{ok(name, "none recognized by the names of its programs")}
	}
	return []Check{ok(name, "%s; Kerb coexists with them, in the order shown per interface", strings.Join(found, ", "))}
}

// recognize returns the names of network agents whose programs are loaded, found by the prefix of program names.
func recognize(programs map[string]int) []string {
	var found []string
	seen := make(map[string]bool)
	for _, a := range agents {
		for program := range programs {
			if strings.HasPrefix(program, a.prefix) && !seen[a.name] {
				seen[a.name] = true
				found = append(found, a.name)
			}
		}
	}
	return found
}
