// SPDX-License-Identifier: Apache-2.0

// Package sandbox starts a program with almost no rights: as a user of its own, without capabilities, inside Landlock
// and a seccomp filter, and by default without a network.
//
// Between the agent and the program there is a launcher, which is the agent's binary with the argument control-run: it
// takes the rights from itself, and then becomes the program. This way nothing has to be done between fork and exec,
// where a Go process may do next to nothing.
package sandbox

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Argument is the launcher's first argument: the binary passes what follows to Main.
const Argument = "control-run"

// LastFile is the last descriptor that the program is given.
const LastFile = 4

const (
	defaultFiles = 256
	minFiles     = 16        // the launcher itself needs a few
	minData      = 512 << 20 // bytes
)

// Spec says what to start, and what it may use.
type Spec struct {
	Command []string // Command[0] is absolute
	Env     []string // complete
	Dir     string   // working directory; may be read
	UID     int      // also the group; there are no others
	Read    []string // files and directories that may be read and executed, alongside the system's programs and libraries
	Write   []string // directories that may be written
	Memory  int64    // in bytes: the caller's to enforce; see dataLimit
	Cgroup  string   // directory of a cgroup to enter; empty to stay in the caller's
	Disk    int64    // bytes in Write, which is the caller's to enforce; no file may be larger. 0: no limit
	Files   uint64   // limit on descriptors; 0 is 256
	Network bool     // false: an empty network namespace, and no Unix sockets but those it is given
	Inject  bool     // is given packet sockets, and may write to them; not with Network
	KeepBPF bool     // keep CAP_BPF: before Linux 5.19, map operations need it if kernel.unprivileged_bpf_disabled is set
}

// order is what the launcher receives.
type order struct {
	Spec
	Parent int // process that the program must not outlive
}

// Command returns a command that is not started. The caller sets Stdout, Stderr and ExtraFiles: of these, the first two
// (descriptors 3 and 4) reach the program. launcher is the path of a binary that calls Main, for example
// /proc/self/exe.
//
// The program is killed when the thread that starts it ends: start it by Start. It is process 1 of a PID namespace:
// with its end, however it comes, the kernel kills what it has forked. Of the signals that it does not handle only
// SIGKILL reaches it.
func Command(launcher string, s Spec) (*exec.Cmd, error) {
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("sandbox: %w", err)
	}
	cmd := exec.Command(launcher, Argument, encode(order{Spec: s, Parent: os.Getpid()}))
	cmd.Dir = s.Dir
	cmd.Env = []string{} // GODEBUG and the like are for the program, not for the launcher
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: s.namespaces(),
		Setpgid:    true,
		Pdeathsig:  syscall.SIGKILL,
	}
	return cmd, nil
}

// check rejects specifications that would not confine the program: user 0, the root directory, or Inject together with
// Network.
func (s *Spec) check() error {
	if len(s.Command) == 0 || !filepath.IsAbs(s.Command[0]) {
		return fmt.Errorf("command %q does not begin with an absolute path", s.Command)
	}
	if s.UID <= 0 {
		return fmt.Errorf("user %d: must be above 0", s.UID)
	}
	if s.Inject && s.Network {
		return errors.New("packet sockets and a separate network namespace are mutually exclusive")
	}
	if s.Files != 0 && s.Files < minFiles {
		return fmt.Errorf("%d descriptors: must be at least %d", s.Files, minFiles)
	}
	for _, path := range append(append([]string{s.Dir}, s.Read...), s.Write...) {
		if !filepath.IsAbs(path) || filepath.Clean(path) == "/" {
			return fmt.Errorf("path %q: must be absolute, and not the root", path)
		}
	}
	return nil
}

func (s *Spec) namespaces() uintptr {
	flags := uintptr(syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS)
	if !s.Network {
		flags |= syscall.CLONE_NEWNET
	}
	return flags
}

func (s *Spec) files() uint64 {
	if s.Files == 0 {
		return defaultFiles
	}
	return s.Files
}

// dataLimit is far above Memory, as Go and Python map more than they touch: it is for a program that allocates faster
// than the caller examines its resident memory.
func (s *Spec) dataLimit() uint64 {
	return uint64(max(minData, 8*s.Memory))
}

// fileLimit is the size of the largest file.
func (s *Spec) fileLimit() uint64 {
	if s.Disk <= 0 {
		return math.MaxUint64
	}
	return uint64(s.Disk)
}

func encode(o order) string {
	data, err := json.Marshal(o)
	if err != nil {
		panic(err) // nothing in it that can fail
	}
	return base64.StdEncoding.EncodeToString(data)
}

// parse decodes the only argument, base64 of JSON, and checks it again: the launcher does not trust its command line.
func parse(args []string) (*order, error) {
	if len(args) != 1 {
		return nil, errors.New("is started by the agent only")
	}
	data, err := base64.StdEncoding.DecodeString(args[0])
	if err != nil {
		return nil, err
	}
	o := &order{}
	if err := json.Unmarshal(data, o); err != nil {
		return nil, err
	}
	return o, o.check()
}
