// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"os"
	"strings"

	"github.com/cilium/ebpf/features"
	ll "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// Reasons says what of the protection this kernel lacks, for people. Programs start nevertheless, except without
// seccomp.
func Reasons() []string {
	out := landlockReasons(ll.LandlockGetABIVersion())
	if err := unix.Prctl(unix.PR_GET_SECCOMP, 0, 0, 0, 0); errors.Is(err, unix.EINVAL) {
		out = append(out, "no seccomp: control planes do not start (CONFIG_SECCOMP_FILTER)")
	}
	if _, err := os.Stat("/proc/self/ns/net"); err != nil {
		out = append(out, "no network namespaces: control planes without network do not start (CONFIG_NET_NS)")
	}
	if _, err := os.Stat("/proc/self/ns/pid"); err != nil {
		out = append(out, "no PID namespaces: control planes do not start (CONFIG_PID_NS)")
	}
	return out
}

// landlockReasons are by what the kernel answers when asked for the version of Landlock. EPERM is never the kernel's
// own answer.
func landlockReasons(abi int, err error) []string {
	const readable = ": control planes can read all world-readable files"
	switch {
	case errors.Is(err, unix.EPERM):
		return []string{"a system call filter keeps Landlock from Kerb (SystemCallFilter= of its unit must list " +
			"landlock_create_ruleset, landlock_add_rule and landlock_restrict_self)" + readable}
	case err != nil || abi == 0:
		return []string{"no Landlock (Linux 5.13, and landlock in lsm= of the command line)" + readable}
	case abi < 3:
		return []string{"Landlock is older than Linux 6.2: control planes can truncate files that all users can write"}
	case abi < 6:
		return []string{"Landlock is older than Linux 6.12: control planes with network can connect to abstract Unix sockets"}
	}
	return nil
}

// NeedsBPF says whether a Spec must KeepBPF on this node.
func NeedsBPF() bool {
	version, err := features.LinuxVersionCode()
	if err != nil {
		return false
	}
	disabled, err := os.ReadFile("/proc/sys/kernel/unprivileged_bpf_disabled")
	return err == nil && needsBPF(version, string(disabled))
}

func needsBPF(version uint32, disabled string) bool {
	return version < 5<<16|19<<8 && strings.TrimSpace(disabled) != "0"
}
