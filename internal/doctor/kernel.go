// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/dataplane/probe"
)

// The oldest kernel that Kerb is tested on.
const oldestMajor, oldestMinor = 5, 10

func kernel(Options) []Check {
	return []Check{version(release()), btfFile("/sys/kernel/btf/vmlinux"), jit(), offload()}
}

func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

func version(release string) Check {
	var major, minor int
	if _, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil {
		return bad(Warn, "kernel", "uname -r", "cannot read the version %q", release)
	}
	if olderThan(release, oldestMajor, oldestMinor) {
		return bad(Fail, "kernel", newer("5.10"), "Linux %s is older than 5.10", release)
	}
	return ok("kernel", "Linux %s", release)
}

// olderThan is false for a release that cannot be read.
func olderThan(release string, major, minor int) bool {
	var a, b int
	_, err := fmt.Sscanf(release, "%d.%d", &a, &b)
	return err == nil && (a < major || a == major && b < minor)
}

// btfFile looks for the magic number of type information, in either byte order.
func btfFile(path string) Check {
	const remedy = "boot a kernel with CONFIG_DEBUG_INFO_BTF=y, as those of distributions are"
	f, err := os.Open(path)
	if err != nil {
		return bad(Warn, "BTF", remedy, "no type information of the kernel: %v; packages that need it are refused", err)
	}
	defer f.Close()
	magic := make([]byte, 2)
	if _, err := f.Read(magic); err != nil || (string(magic) != "\x9f\xeb" && string(magic) != "\xeb\x9f") {
		return bad(Warn, "BTF", remedy, "%s is not type information", path)
	}
	return ok("BTF", "%s", path)
}

// offload tries what the firewall needs to check where deferred checksums are written.
func offload() Check {
	const name = "checksum offload"
	if err := dataplane.HaveSKBFields(); err != nil {
		return bad(Warn, name, "boot a kernel with CONFIG_DEBUG_INFO_BTF=y, and without lockdown=confidentiality",
			"the firewall cannot check packets with a deferred checksum: %v; a service with packet sockets can have a port "+
				"overwritten after the verdict", err)
	}
	return ok(name, "the firewall checks where deferred checksums are written")
}

// jit examines a loaded program and not at net.core.bpf_jit_enable, which
// namespaces hide and CONFIG_BPF_JIT_ALWAYS_ON overrules.
func jit() Check {
	const name, remedy = "BPF JIT", "sysctl -w net.core.bpf_jit_enable=1"
	jitted, err := probe.Jitted()
	if err != nil {
		return bad(Warn, name, "sudo kerb doctor", "unknown: %s", probe.Reason(err))
	}
	if !jitted {
		return bad(Warn, name, remedy, "off: programs are interpreted, several times slower")
	}
	if harden := sysctl("net/core/bpf_jit_harden"); harden == "2" {
		return bad(Warn, name, "sysctl -w net.core.bpf_jit_harden=1", "on, but hardened for root too, which costs speed")
	}
	return ok(name, "on")
}

func sysctl(knob string) string {
	value, err := os.ReadFile("/proc/sys/" + knob)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(value))
}

// memlock finds out whether the kernel charges BPF memory to RLIMIT_MEMLOCK,
// as those before 5.11 do, and if so lifts the limit of this process. What
// the library finds is taken for that only there: on later ones it means that
// this process may not make maps, which the capabilities show.
func memlock(Options) []Check {
	const name = "locked memory"
	var before, after unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before); err != nil {
		return []Check{bad(Warn, name, "ulimit -l", "cannot read the limit: %v", err)}
	}
	if err := rlimit.RemoveMemlock(); err != nil && olderThan(release(), 5, 11) {
		return []Check{bad(Fail, name, "ulimit -l unlimited (in the unit: LimitMEMLOCK=infinity)",
			"this kernel charges BPF memory to RLIMIT_MEMLOCK, which is %s and cannot be lifted: %v", size(before.Cur), err)}
	}
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &after); err == nil && after != before {
		return []Check{ok(name, "this kernel charges BPF memory to RLIMIT_MEMLOCK; lifted from %s", size(before.Cur))}
	}
	return []Check{ok(name, "no limit applies to BPF")}
}

// capability is a power and what is lost without it.
type capability struct {
	name   string
	number int
	status Status
	lost   string
}

var wanted = []capability{
	{"CAP_BPF", unix.CAP_BPF, Fail, "cannot create maps nor load programs"},
	{"CAP_NET_ADMIN", unix.CAP_NET_ADMIN, Fail, "cannot attach programs nor see services"},
	{"CAP_PERFMON", unix.CAP_PERFMON, Warn, "packages that trace or compare pointers are refused"},
	{"CAP_SYS_ADMIN", unix.CAP_SYS_ADMIN, Warn, "cannot look programs up by id (names of foreign programs) nor try " +
		"attaching in a namespace"},
	{"CAP_NET_RAW", unix.CAP_NET_RAW, Warn, "packages that send in the name of services (inject) cannot"},
	{"CAP_SYS_PTRACE", unix.CAP_SYS_PTRACE, Warn, "cannot look into processes: services registered by pid"},
	{"CAP_NET_BROADCAST", unix.CAP_NET_BROADCAST, Warn, "changes of addresses inside services are seen a minute late"},
}

// capabilities compares the effective ones with what Kerb does. Before Linux
// 5.8 CAP_SYS_ADMIN stood for CAP_BPF and CAP_PERFMON; it still implies them.
func capabilities(Options) []Check {
	effective, err := effectiveCapabilities()
	if err != nil {
		return []Check{bad(Warn, "capabilities", "grep CapEff /proc/self/status", "cannot read them: %v", err)}
	}
	return judgeCapabilities(effective)
}

func effectiveCapabilities() (uint64, error) {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		return 0, err
	}
	return uint64(data[0].Effective) | uint64(data[1].Effective)<<32, nil
}

// judgeCapabilities returns one check per capability that the agent uses; effective is the mask of CapEff.
// CAP_SYS_ADMIN implies CAP_BPF and CAP_PERFMON, as in the kernel since 5.8.
func judgeCapabilities(effective uint64) []Check {
	has := func(number int) bool { return effective&(1<<number) != 0 }
	var checks []Check
	for _, c := range wanted {
		implied := (c.number == unix.CAP_BPF || c.number == unix.CAP_PERFMON) && has(unix.CAP_SYS_ADMIN)
		switch {
		case has(c.number):
			checks = append(checks, ok(c.name, "there"))
		case implied:
			checks = append(checks, ok(c.name, "implied by CAP_SYS_ADMIN"))
		default:
			checks = append(checks, bad(c.status, c.name, fmt.Sprintf("sudo kerb doctor (in the unit: AmbientCapabilities=%s)",
				c.name), "missing: %s", c.lost))
		}
	}
	return checks
}
