// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The test binary is the launcher, and with the argument probe what the launcher starts.
const probeArgument = "probe"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Argument {
		fmt.Println(Main(os.Args[2:]))
		os.Exit(1)
	}
	if len(os.Args) > 2 && os.Args[1] == probeArgument {
		fmt.Print(probes[os.Args[2]](os.Args[3:]))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// probes are what the tests have done inside. Each returns what is to be seen.
var probes map[string]func(args []string) string

func init() {
	probes = map[string]func([]string) string{
		"read":       func(a []string) string { return result(readAll(a[0])) },
		"append":     func(a []string) string { return result(appendTo(a[0])) },
		"rename":     func(a []string) string { return result(os.Rename(a[0], a[1])) },
		"exec":       func(a []string) string { return result(syscall.Exec(a[0], a, nil)) },
		"show":       func(a []string) string { data, err := os.ReadFile(a[0]); return string(data) + failure(err) },
		"call":       call,
		"dial":       func(a []string) string { _, err := net.DialTimeout(a[0], a[1], 30*time.Second); return result(err) },
		"interfaces": interfaces,
		"files":      openFiles,
		"exhaust":    exhaust,
		"map":        useMap,
		"allocate":   allocate,
		"buffers":    buffers,
		"grow":       grow,
		// until it is killed
		"sleep":   func([]string) string { fmt.Println("started"); time.Sleep(time.Minute); return "" },
		"forever": forever,
		"parent":  parent,
		"umask":   func([]string) string { return fmt.Sprintf("%#o", unix.Umask(0)) },
	}
}

func failure(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// result is ok, or the name of the error's number.
func result(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

func readAll(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		_, err := os.ReadDir(path)
		return err
	}
	_, err := os.ReadFile(path)
	return err
}

func appendTo(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString("x")
	return err
}

// call makes a system call by numbers.
func call(args []string) string {
	var n [7]uintptr
	for i, a := range args {
		v, _ := strconv.ParseInt(a, 0, 64)
		n[i] = uintptr(v)
	}
	_, _, errno := unix.RawSyscall6(n[0], n[1], n[2], n[3], n[4], n[5], n[6])
	if errno != 0 {
		return unix.ErrnoName(errno)
	}
	return "ok"
}

// interfaces returns those that are up: some kernels have tunnels in every network namespace.
func interfaces([]string) string {
	list, err := net.Interfaces()
	var names []string
	for _, i := range list {
		if i.Flags&net.FlagUp != 0 {
			names = append(names, i.Name)
		}
	}
	return strings.Join(names, " ") + failure(err)
}

func openFiles([]string) string {
	entries, err := os.ReadDir("/proc/self/fd")
	var out []string
	for _, e := range entries {
		target, _ := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		out = append(out, e.Name()+"="+target)
	}
	return strings.Join(out, "\n") + failure(err)
}

// exhaust returns the last descriptor that there can be, and why there is no other.
func exhaust([]string) string {
	for last := 0; ; {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0)
		if err != nil {
			return fmt.Sprintf("%d %s", last, result(err))
		}
		last = max(last, fd)
	}
}

// useMap takes a map from descriptor 4, as control planes do, and doubles the value of key 0.
func useMap([]string) string {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(LastFile, make([]byte, 16), oob, 0)
	if err != nil {
		return "receive: " + err.Error()
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return fmt.Sprint("messages: ", messages, err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return "rights: " + err.Error()
	}
	m, err := ebpf.NewMapFromFD(fds[0])
	if err != nil {
		return "open: " + err.Error()
	}
	var value uint32
	if err := m.Lookup(uint32(0), &value); err != nil {
		return "look up: " + err.Error()
	}
	if err := m.Put(uint32(0), 2*value); err != nil {
		return "update: " + err.Error()
	}
	return "ok"
}

func allocate(args []string) string {
	n, _ := strconv.Atoi(args[0])
	_, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	return result(err)
}

// buffers asks for larger socket buffers.
func buffers([]string) string {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return result(err)
	}
	for _, option := range []int{unix.SO_SNDBUF, unix.SO_RCVBUF} {
		before, _ := unix.GetsockoptInt(fds[0], unix.SOL_SOCKET, option)
		if err := unix.SetsockoptInt(fds[0], unix.SOL_SOCKET, option, before/4); err != nil {
			return result(err)
		}
		if now, err := unix.GetsockoptInt(fds[0], unix.SOL_SOCKET, option); now != before || err != nil {
			return fmt.Sprintf("%d bytes before, %d now: %v", before, now, err)
		}
	}
	return "same"
}

func grow(args []string) string {
	size, _ := strconv.ParseInt(args[1], 10, 64)
	f, err := os.Create(args[0])
	if err != nil {
		return result(err)
	}
	defer f.Close()
	return result(f.Truncate(size))
}

// forever forks a process in a session of its own, which would outlive this one.
func forever([]string) string {
	_, err := os.StartProcess("/proc/self/exe", []string{"", probeArgument, "sleep"},
		&os.ProcAttr{Files: []*os.File{nil, os.Stdout}, Sys: &syscall.SysProcAttr{Setsid: true}})
	if err != nil {
		return err.Error()
	}
	time.Sleep(time.Minute) // until it is killed
	return ""
}

// parent is an agent that starts a program, and then only waits to be killed.
func parent(args []string) string {
	s := Spec{}
	if err := json.Unmarshal([]byte(args[0]), &s); err != nil {
		return err.Error()
	}
	cmd, err := Command("/proc/self/exe", s)
	if err != nil {
		return err.Error()
	}
	cmd.Stdout = os.Stdout
	if err := Start(cmd); err != nil {
		return err.Error()
	}
	time.Sleep(time.Minute) // until it is killed
	return ""
}
