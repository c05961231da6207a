// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxProcesses is a limit for each user. Threads count, and a Go program may have a few per processor.
const MaxProcesses = 256

// Main is the life of the launcher: it takes the rights from itself and becomes the program. It returns on errors only.
//
// Users, capabilities, no_new_privs and seccomp belong to threads. All are set on this one only, without the detour of
// setting them on all threads: the thread which calls execve is the one that becomes the program, the others end there.
func Main(args []string) error {
	runtime.LockOSThread()
	o, err := parse(args)
	if err != nil {
		return fmt.Errorf("%s: %w", Argument, err)
	}
	for _, step := range o.steps() {
		if err := step.run(); err != nil {
			return fmt.Errorf("%s: %s: %w", Argument, step.name, err)
		}
	}
	return fmt.Errorf("%s: execute %s: %w", Argument, o.Command[0], syscall.Exec(o.Command[0], o.Command, o.Env))
}

type step struct {
	name string
	run  func() error
}

// steps are in an order that matters. Landlock comes before the change of user, which might not be able to open the
// paths; the signal after it, as the change of user clears it; the filter last, as it denies some of the other steps.
func (o *order) steps() []step {
	return []step{
		{"close descriptors", closeFiles},
		{"enter cgroup", o.enterCgroup},
		{"set limits", o.setLimits},
		{"drop capabilities", o.dropBounding},
		{"set no_new_privs", func() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }},
		{"restrict file system", o.restrictPaths},
		{"change user", o.changeUser},
		{"clear capabilities", o.setCapabilities},
		{"end with the agent", o.endWithParent},
		{"restrict system calls", o.restrictCalls},
	}
}

// closeFiles has all descriptors but those of the contract closed by execve, and not now, when Go's own are among them.
func closeFiles() error {
	unix.Umask(0o077)
	err := unix.CloseRange(LastFile+1, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) { // before Linux 5.11
		return closeEach()
	}
	return err
}

func closeEach() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > LastFile {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// enterCgroup moves this process. Starting it there takes clone3(2), which units that restrict namespaces are denied.
func (o *order) enterCgroup() error {
	if o.Cgroup == "" {
		return nil
	}
	return os.WriteFile(filepath.Join(o.Cgroup, "cgroup.procs"), []byte("0"), 0)
}

func (o *order) setLimits() error {
	for resource, limit := range map[int]uint64{
		unix.RLIMIT_NOFILE: o.files(),
		unix.RLIMIT_DATA:   o.dataLimit(),
		unix.RLIMIT_NPROC:  MaxProcesses,
		unix.RLIMIT_FSIZE:  o.fileLimit(),
		unix.RLIMIT_CORE:   0,
	} {
		// Not prlimit: syscall.Exec would undo that for NOFILE.
		if err := syscall.Setrlimit(resource, &syscall.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("resource %d to %d: %w", resource, limit, err)
		}
	}
	return nil
}

// dropBounding empties the set that limits what any program can ever get.
func (o *order) dropBounding() error {
	for c := uintptr(0); ; c++ {
		if o.KeepBPF && c == unix.CAP_BPF {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) && c > unix.CAP_BPF { // the kernel's last one is passed
			return nil
		}
		if err != nil {
			return fmt.Errorf("%d: %w", c, err)
		}
	}
}

// changeUser drops all groups and changes to the order's user. PR_SET_KEEPCAPS keeps the permitted capabilities across
// the change where the program needs CAP_BPF. The raw calls change this thread only.
func (o *order) changeUser() error {
	if o.KeepBPF {
		if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	id := uintptr(o.UID)
	if _, _, err := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); err != 0 {
		return fmt.Errorf("setgroups: %w", err)
	}
	if _, _, err := unix.RawSyscall(unix.SYS_SETRESGID, id, id, id); err != 0 {
		return fmt.Errorf("setresgid: %w", err)
	}
	if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id); err != 0 {
		return fmt.Errorf("setresuid: %w", err)
	}
	return nil
}

// setCapabilities leaves none, or CAP_BPF in the sets that survive execve.
func (o *order) setCapabilities() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if o.KeepBPF {
		bit := uint32(1) << (unix.CAP_BPF % 32)
		sets[unix.CAP_BPF/32] = unix.CapUserData{Effective: bit, Permitted: bit, Inheritable: bit}
	}
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return err
	}
	if !o.KeepBPF {
		return nil
	}
	return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, unix.CAP_BPF, 0, 0)
}

func (o *order) endWithParent() error { return EndWith(o.Parent) }

// EndWith makes the kernel kill the program that this thread executes next when parent ends, or returns an error if
// parent has ended before. The kernel keeps this setting for each thread: Pdeathsig alone sets it for the first one,
// which may not be this one.
func EndWith(parent int) error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return err
	}
	now, err := parentPID()
	if err == nil && now != parent {
		err = fmt.Errorf("parent is %d, not %d", now, parent)
	}
	return err
}

// parentPID is the parent's id in the namespace of the agent, whose /proc this is. To getppid(2) it is 0, being outside
// of ours.
func parentPID() (int, error) {
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ") // pid (comm) state ppid: the launcher's comm is without brackets
	var state string
	var parent int
	_, err = fmt.Sscan(rest, &state, &parent)
	return parent, err
}

// restrictCalls installs the seccomp filter on this thread. It returns the bare errno.
func (o *order) restrictCalls() error {
	filter, err := assemble(o.filter())
	if err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if errno != 0 {
		return errno
	}
	return nil
}
