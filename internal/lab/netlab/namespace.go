// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespaceDir is the directory of `ip netns`.
const namespaceDir = "/run/netns"

// Namespace is a network namespace to run code and processes in.
type Namespace struct {
	path   string
	handle netns.NsHandle
	ctx    context.Context // ends with the lab, and with it the processes
}

// Path returns a file that refers to the namespace: below /run/netns, or in /proc for the caller's namespace.
func (n *Namespace) Path() string { return n.path }

// Do runs f in the namespace on a locked OS thread. Goroutines that f starts are not in the namespace; sockets and
// netlink handles that f opens are.
func (n *Namespace) Do(f func() error) error {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("current namespace: %w", err)
	}
	defer home.Close()
	if err := netns.Set(n.handle); err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("enter %s: %w", n.path, err)
	}
	defer switchBack(home)
	return f()
}

// switchBack switches the thread back. If that fails, it keeps the thread locked, so that it ends with its goroutine.
func switchBack(home netns.NsHandle) {
	if netns.Set(home) == nil {
		runtime.UnlockOSThread()
	}
}

// Command prepares a process in the namespace. It shares the mounts of the caller (bpffs, cgroups), and is killed when
// ctx ends, the lab is closed or the caller dies. It is started by nsenter, which execs the program, so that the
// process id is the program's.
func (n *Namespace) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	joined, stop := context.WithCancel(ctx)
	context.AfterFunc(n.ctx, stop)
	cmd := exec.CommandContext(joined, "nsenter", append([]string{"--net=" + n.path, "--", name}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

func (n *Namespace) netlink() (*netlink.Handle, error) {
	h, err := netlink.NewHandleAt(n.handle, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink in %s: %w", n.path, err)
	}
	return h, nil
}

func (n *Namespace) close() { n.handle.Close() }

// Current returns the namespace of the caller, without a lab, and a function that closes it. The caller must end the
// processes that it starts.
func Current() (*Namespace, func(), error) {
	n, err := currentNamespace(context.Background())
	if err != nil {
		return nil, nil, err
	}
	return n, n.close, nil
}

func currentNamespace(ctx context.Context) (*Namespace, error) {
	handle, err := netns.Get()
	if err != nil {
		return nil, fmt.Errorf("current namespace: %w", err)
	}
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(handle))
	return &Namespace{path: path, handle: handle, ctx: ctx}, nil
}

func openNamespace(name string) (*Namespace, error) {
	path := filepath.Join(namespaceDir, name)
	handle, err := netns.GetFromPath(path)
	if err != nil {
		return nil, err
	}
	return &Namespace{path: path, handle: handle, ctx: context.Background()}, nil
}

// createNamespace creates a namespace that `ip netns` lists, with loopback up and IPv6 addresses usable immediately.
func createNamespace(ctx context.Context, name string) (*Namespace, error) {
	if err := shareNamespaceDir(); err != nil {
		return nil, err
	}
	path := filepath.Join(namespaceDir, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL, 0o444)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("namespace %s: %w", name, ErrExists)
	}
	if err != nil {
		return nil, err
	}
	f.Close()
	handle, err := unshareTo(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create namespace %s: %w", name, err), removeNamespace(name))
	}
	return &Namespace{path: path, handle: handle, ctx: ctx}, nil
}

// unshareTo moves this thread to a new namespace, binds it to path, and switches back.
func unshareTo(path string) (netns.NsHandle, error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return netns.None(), err
	}
	defer home.Close()
	defer switchBack(home)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return netns.None(), err
	}
	own := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
	if err := unix.Mount(own, path, "", unix.MS_BIND, ""); err != nil {
		return netns.None(), err
	}
	if err := errors.Join(disableDAD(), linkUp("lo")); err != nil {
		return netns.None(), err
	}
	return netns.GetFromPath(path)
}

// shareNamespaceDir does what `ip netns add` does: it makes /run/netns a shared mount, so that removing a name frees it
// in every mount namespace.
func shareNamespaceDir() error {
	if err := os.MkdirAll(namespaceDir, 0o755); err != nil {
		return err
	}
	err := unix.Mount("", namespaceDir, "", unix.MS_SHARED|unix.MS_REC, "")
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	if err := unix.Mount(namespaceDir, namespaceDir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", namespaceDir, err)
	}
	return unix.Mount("", namespaceDir, "", unix.MS_SHARED|unix.MS_REC, "")
}

// disableDAD disables duplicate address detection and router solicitation on all future interfaces.
func disableDAD() error {
	return errors.Join(
		setSysctl("net/ipv6/conf/all/accept_dad", "0"),
		setSysctl("net/ipv6/conf/default/accept_dad", "0"),
		setSysctl("net/ipv6/conf/default/router_solicitations", "0"),
	)
}

// setSysctl writes to the namespace of the calling thread. A setting that the kernel does not have is no error.
func setSysctl(knob, value string) error {
	err := os.WriteFile(filepath.Join("/proc/sys", knob), []byte(value), 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func linkUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	return netlink.LinkSetUp(link)
}
