// SPDX-License-Identifier: Apache-2.0

// Package executable reports what the program that a process runs may ask of its sockets, without running or stopping
// it: by what its executable and the libraries that are mapped import, by the constants in their machine code, and by
// the names of functions that Go keeps. It errs on the side of "uses": a program may contain a call that it never
// makes.
package executable

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/timeoutio"
)

// What a program may use, and what sockets that receive by redirection may do differently.
const (
	Splice  = "splice"      // splice(2), which may take bytes out of a socket
	Queued  = "FIONREAD"    // ioctl(2) for the number of bytes that wait
	WaitAll = "MSG_WAITALL" // recv(2) that waits for all that was asked for
	Urgent  = "MSG_OOB"     // urgent data: recv(2) of it, sockatmark(3)
)

// Facts are what is known about a process's program.
type Facts struct {
	Path   string   // of the executable, as the process sees it
	Device uint64   // st_dev of the executable in the kernel's form, as inode->i_sb->s_dev
	Inode  uint64   // st_ino
	Uses   []string // sorted
	Go     string   // version of Go that it is made with; empty for others

	Modified, Size uint64 // of the file: ns since 1970, bytes
	Configured     bool   // Uses holds for this process, by its configuration, and for no other of the file
}

// ErrExited is returned if the process has exited, its PID was reused, or it has executed another program.
var ErrExited = errors.New("the process has exited or executed another program")

// ErrPIDNamespace is returned because the data plane sees PIDs of the initial PID namespace.
var ErrPIDNamespace = errors.New("the agent runs in a separate PID namespace, where process ids differ: " +
	"run it in that of the node (docker run --pid=host, hostPID: true)")

// firstNamespace is PROC_PID_INIT_INO of the kernel.
const firstNamespace = "pid:[4026531836]"

// CheckPIDNamespace returns ErrPIDNamespace unless this process is in the initial PID namespace.
func CheckPIDNamespace() error {
	if ns, err := os.Readlink("/proc/self/ns/pid"); err == nil && ns != firstNamespace {
		return ErrPIDNamespace
	}
	return nil
}

// gone returns why there is no process with a PID.
func gone() error {
	if err := CheckPIDNamespace(); err != nil {
		return fmt.Errorf("%w; %w", ErrExited, err)
	}
	return ErrExited
}

// Examiner examines programs and caches the results by file. The zero value is ready to use.
type Examiner struct {
	calls timeoutio.Limiter
	mu    sync.Mutex
	files map[identity]*contents
}

// identity of a version of a file.
type identity struct {
	dev, ino              uint64
	size, written, change int64 // bytes, ns since 1970
}

// maxFiles is how many files are remembered, at about 100 bytes each.
const maxFiles = 4096

// patience is longer than what is examined takes, unless the machine is very busy: it is remembered then.
const patience = 10 * time.Second

// Examine examines the program of the process pid, as seen in the caller's PID namespace. start is the process's start
// time in ns after boot, compared at the resolution of /proc (10 ms); 0 accepts any process with that PID.
func (e *Examiner) Examine(pid int, start uint64) (Facts, error) {
	facts, err := timeoutio.Do(&e.calls, patience, func() (Facts, error) { return e.process(pid, start) })
	if err != nil && !errors.Is(err, ErrExited) {
		err = fmt.Errorf("examine process %d: %w", pid, err)
	}
	return facts, err
}

func (e *Examiner) process(pid int, start uint64) (Facts, error) {
	dir := "/proc/" + strconv.Itoa(pid)
	begun, err := startOf(dir)
	if err != nil || start != 0 && begun != start/tick {
		return Facts{}, gone()
	}
	files, err := open(dir)
	defer files.close()
	if now, goneErr := startOf(dir); goneErr != nil || now != begun || errors.Is(err, fs.ErrNotExist) {
		return Facts{}, ErrExited
	}
	var facts Facts
	if err == nil {
		facts, err = e.program(files)
	}
	if err != nil {
		return Facts{}, err
	}
	facts.configure(dir, max(start, begun*tick)) // start is exact
	return facts, nil
}

// tick is the unit of times in /proc/PID/stat: USER_HZ is 100 on all architectures that Kerb runs on.
const tick = 10_000_000 // ns

// startOf is in ticks since boot.
func startOf(dir string) (uint64, error) {
	stat, err := readProc(dir + "/stat")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // the name may hold spaces and parentheses
	// proc_pid_stat(5); the first field here is the third there
	const starttime = 22 - 3
	if len(fields) <= starttime {
		return 0, ErrExited
	}
	return strconv.ParseUint(fields[starttime], 10, 64)
}

// opened is what a process runs, which can be examined also when it has ended.
type opened struct {
	path  string     // of the executable, as the process sees it
	files []*os.File // the executable first
}

func (o *opened) close() {
	for _, f := range o.files {
		f.Close()
	}
}

// maxMapped is how many files with machine code a process may have mapped: large programs have a few hundred.
const maxMapped = 1024

// open opens everything before anything is examined: some processes end soon.
func open(dir string) (*opened, error) {
	path, err := os.Readlink(dir + "/exe")
	o := &opened{path: printable(strings.TrimSuffix(path, " (deleted)"))}
	if err != nil {
		return o, err
	}
	libraries, err := mapped(dir)
	if err != nil {
		return o, err
	}
	if len(libraries) > maxMapped {
		return o, fmt.Errorf("%d mapped files are too many to examine", len(libraries))
	}
	for _, name := range append([]string{dir + "/exe"}, libraries...) {
		if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
			continue // a device, which opening might set to work
		}
		f, err := openUnpolled(name)
		if err != nil {
			return o, explain(err)
		}
		o.files = append(o.files, f)
	}
	return o, o.same(dir)
}

// openUnpolled is os.Open for files of others. That would have Go's runtime ask epoll_ctl(2) about the file, which a
// file system in user space may leave without an answer (FUSE_POLL); and unlike other system calls this one stops the
// whole process with it.
func openUnpolled(name string) (*os.File, error) {
	for {
		fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			return os.NewFile(uintptr(fd), name), nil
		}
		if err != unix.EINTR {
			return nil, &fs.PathError{Op: "open", Path: name, Err: err}
		}
	}
}

// printable is what a path looks like where it cannot set a terminal to work.
func printable(path string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, path)
}

// same checks that the process still runs what was opened first: execve(2) keeps the process, and changes the program.
func (o *opened) same(dir string) error {
	was, err := o.files[0].Stat()
	if err != nil {
		return err
	}
	is, err := os.Stat(dir + "/exe")
	if err == nil && !os.SameFile(was, is) {
		err = fs.ErrNotExist
	}
	return err
}

func (e *Examiner) program(o *opened) (Facts, error) {
	main, id, err := e.file(o.files[0])
	if err != nil {
		return Facts{}, err
	}
	facts := Facts{Path: o.path, Device: kernelDevice(id.dev), Inode: id.ino, Go: main.goVersion,
		Uses:     slices.Clone(main.uses),
		Modified: uint64(id.written), Size: uint64(id.size)}
	searched := main.searched
	for _, f := range o.files[1:] {
		library, _, err := e.file(f)
		if searched += library.searched; searched > maxSearched {
			return Facts{}, errTooLarge
		}
		if errors.Is(err, errNoELF) { // machine code that a runtime has kept for later
			continue
		}
		if err != nil {
			return Facts{}, err
		}
		facts.Uses = append(facts.Uses, library.uses...)
	}
	slices.Sort(facts.Uses)
	facts.Uses = slices.Compact(facts.Uses)
	return facts, nil
}

// kernelDevice is a dev_t as the kernel keeps it: 12 bits of the major number before 20 bits of the minor one.
func kernelDevice(dev uint64) uint64 { return uint64(unix.Major(dev))<<20 | uint64(unix.Minor(dev)) }

// mapped are names under which files can be opened that the process has mapped to execute, each file once.
func mapped(dir string) (names []string, err error) {
	maps, err := readProc(dir + "/maps")
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(maps)) {
		// start-end perms offset dev inode path
		f := strings.Fields(line)
		if len(f) < 6 || len(f[1]) < 3 || f[1][2] != 'x' || f[4] == "0" || seen[f[3]+" "+f[4]] {
			continue
		}
		seen[f[3]+" "+f[4]] = true
		start, end, _ := strings.Cut(f[0], "-") // without leading zeros in map_files
		names = append(names, dir+"/map_files/"+strings.TrimLeft(start, "0")+"-"+strings.TrimLeft(end, "0"))
	}
	return names, nil
}

// maxProc is more than /proc reports a process that has not made it to be much: 65,530 mappings by default, 128 KiB for
// an argument.
const maxProc = 16 << 20 // bytes

// readProc reads a file of /proc. A process says itself where its arguments and its environment are: PR_SET_MM_MAP of
// prctl(2).
func readProc(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxProc+1))
	if err == nil && len(text) > maxProc {
		err = fmt.Errorf("%s has more than %d MiB", name, maxProc>>20)
	}
	return text, err
}

// file examines a file, once.
func (e *Examiner) file(f *os.File) (*contents, identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, identity{}, err
	}
	id := identity{uint64(st.Dev), st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()}
	e.mu.Lock()
	known := e.files[id]
	e.mu.Unlock()
	if known != nil {
		return known, id, known.err
	}
	c := examine(f)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.files == nil || len(e.files) >= maxFiles {
		e.files = map[identity]*contents{}
	}
	e.files[id] = c
	return c, id, c.err
}

func explain(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: the agent needs CAP_SYS_PTRACE and CAP_SYS_ADMIN to see the programs of other users", err)
	}
	return err
}
