// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"cmp"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// programs returns a function that waits for the data plane's next request for a verdict.
func (p *plane) programs(t *testing.T) (next func() program) {
	t.Helper()
	ring, err := ringbuf.NewReader(p.Maps[mapUnjudged])
	check(t, err)
	t.Cleanup(func() { ring.Close() })
	return func() program {
		t.Helper()
		ring.SetDeadline(time.Now().Add(patience))
		record, err := ring.Read()
		check(t, err)
		e, ok := parseEvent(record.RawSample)
		if !ok {
			t.Fatalf("an event of %d bytes", len(record.RawSample))
		}
		return e.program()
	}
}

// programPath returns the path of this program.
func programPath(t *testing.T) string {
	t.Helper()
	path, err := os.Readlink("/proc/self/exe")
	check(t, err)
	return path
}

// The verdict depends on the table, the owner of the files, and the config, which takes precedence.
func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		config     string
		path       string
		changeable bool
		want       uint32
		why        string
	}{
		{``, "/usr/bin/redis-server", false, safe, ""},
		{``, "/usr/local/bin/node", false, safe, ""},
		{``, "/usr/lib/postgresql/15/bin/postgres", false, safe, ""},
		{``, "/usr/lib/postgresql/15/old/bin/postgres", false, unsafe, "programs.allow"},
		{``, "/app/node", false, unsafe, "programs.allow"},
		{``, "…/usr/bin/node", false, unsafe, "programs.allow"},
		{``, "/memfd:/usr/bin/node", false, unsafe, "programs.allow"},
		{``, "/usr/bin/node", true, unsafe, "others than root"},
		{``, "/usr/sbin/nginx", false, unsafe, "FIONREAD"},
		{``, "/usr/bin/python3.11", false, unsafe, "os.splice"},
		{``, "/usr/sbin/haproxy", false, unsafe, "no guard"},
		{``, "/usr/local/bin/envoy", false, safe, ""},
		{``, "/opt/envoy", false, unsafe, "programs.allow"},
		{``, "/usr/local/bin/ztunnel", false, unsafe, "fills its buffer in part"},
		{`{"programs": {"allow": ["nginx"]}}`, "/opt/nginx", true, allowed, ""},
		{`{"programs": {"allow": ["nginx"]}}`, "…/bin/nginx", true, allowed, ""},
		{`{"programs": {"allow": ["/opt/nginx"]}}`, "/opt/nginx", true, allowed, ""},
		{`{"programs": {"allow": ["/opt/nginx"]}}`, "/home/nginx", true, unsafe, "FIONREAD"},
		{`{"programs": {"deny": ["/usr/bin/node"], "allow": ["node"]}}`, "/usr/bin/node", false, unsafe, "deny"},
	} {
		a := &accelerator{config: configOf(t, c.config)}
		got, why := a.judge(&program{Path: c.path, Changeable: c.changeable})
		if got != c.want || got == unsafe && !strings.Contains(why, c.why) {
			t.Errorf("%+v: verdict %d (%s)", c, got, why)
		}
		a.live.Kernel = sdk.Kernel{Sockets: map[string]bool{"interrupted": true}}
		got, _ = a.judge(&program{Path: c.path, Changeable: c.changeable})
		if got == safe || c.want == safe && got != allowed {
			t.Errorf("%+v: verdict %d where a signal does not matter", c, got)
		}
	}
}

// rootDir returns a directory that only root can change, and whether others can change its parent, as in an initramfs,
// which matters for paths that start there.
func rootDir(t *testing.T) (dir string, others bool) {
	t.Helper()
	var root unix.Stat_t
	check(t, unix.Stat("/", &root))
	dir, err := os.MkdirTemp("/", "kerb-test-")
	check(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir, root.Uid != 0 || root.Mode&0o022 != 0
}

// A program is identified by the path that its processes see, through mounts, and by who can change it.
func TestPathsOfPrograms(t *testing.T) {
	sdktest.NeedRoot(t)
	text, err := exec.LookPath("cat")
	check(t, err)
	image, err := os.ReadFile(text)
	check(t, err)
	dir, others := rootDir(t)
	jail := newJail(t, dir, text)
	inside := &syscall.SysProcAttr{Chroot: jail}
	mounted := filepath.Join(dir, "mounted")
	check(t, os.Mkdir(mounted, 0o755))
	check(t, unix.Mount("none", mounted, "tmpfs", 0, "mode=0755"))
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
	type change func(path string) error
	mode := func(mode os.FileMode) change { return func(path string) error { return os.Chmod(path, mode) } }
	give := func(path string) error { return os.Chown(path, 1234, 0) }
	dirOf := func(do change) change { return func(path string) error { return do(filepath.Dir(path)) } }
	for name, c := range map[string]struct {
		path   string
		change change
		want   string // if it differs
		others bool   // can change it
		in     *syscall.SysProcAttr
	}{
		"root's":                {path: "bin/cat"},
		"of a group":            {path: "bin/cat", change: mode(0o775), others: true},
		"in a common directory": {path: "d/cat", change: dirOf(mode(0o777)), others: true},
		"of a user":             {path: "bin/cat", change: give, others: true},
		"in a user's directory": {path: "d/cat", change: dirOf(give), others: true},
		"on a mount":            {path: "mounted/bin/cat"},
		"on a user's mount":     {path: "mounted/cat", change: dirOf(give), others: true},
		"mounted itself": {path: "bin/other", change: func(p string) error {
			t.Cleanup(func() { _ = unix.Unmount(p, unix.MNT_DETACH) })
			return unix.Mount(text, p, "", unix.MS_BIND, "")
		}},
		"in a chroot":                     {path: "jail/usr/bin/cat", want: "/usr/bin/cat", in: inside},
		"in a chroot of a user namespace": {path: "jail/usr/bin/cat", in: inUserNamespace(jail)},
		"in a user's chroot": {path: "jail/usr/bin/cat", change: func(string) error { return give(jail) },
			want: "/usr/bin/cat", others: true, in: inside},
		"deep":      {path: strings.Repeat("a/", 20) + "cat", want: "…/" + strings.Repeat("a/", 15) + "cat"},
		"long name": {path: strings.Repeat("a", 70) + "/bin/cat", want: "…/" + strings.Repeat("a", 63) + "/bin/cat"},
	} {
		t.Run(name, func(t *testing.T) {
			at := filepath.Join(dir, c.path)
			check(t, os.MkdirAll(filepath.Dir(at), 0o755))
			check(t, os.WriteFile(at, image, 0o755))
			defer func() {
				_ = os.RemoveAll(filepath.Dir(at)) // but for a mount, which goes back to root
				_ = os.Chown(filepath.Dir(at), 0, 0)
				_ = os.Chown(jail, 0, 0)
			}()
			if c.change != nil {
				check(t, c.change(at))
			}
			want := c.want
			if want == "" {
				want = at
			}
			if got := asksAbout(t, at, c.in); got.Path != want || got.Changeable != (c.others || others && want == at) {
				t.Errorf("%s, changeable: %v; want %s", got.Path, got.Changeable, want)
			}
		})
	}
}

// newJail creates a chroot directory, in which a program runs as /usr/bin/cat.
func newJail(t *testing.T, dir, program string) string {
	t.Helper()
	jail := filepath.Join(dir, "jail")
	put := func(from, to string) {
		image, err := os.ReadFile(from)
		check(t, err)
		to = filepath.Join(jail, to)
		check(t, os.MkdirAll(filepath.Dir(to), 0o755))
		check(t, os.WriteFile(to, image, 0o755))
	}
	put(program, "/usr/bin/cat")
	file, err := elf.Open(program)
	check(t, err)
	defer file.Close()
	section := file.Section(".interp")
	if section == nil {
		return jail // no libraries are needed
	}
	text, err := section.Data()
	check(t, err)
	loader := strings.TrimRight(string(text), "\x00")
	put(loader, loader)
	real, err := filepath.EvalSymlinks(loader)
	check(t, err)
	libraries, err := file.ImportedLibraries()
	check(t, err)
	for _, name := range libraries {
		put(filepath.Join(filepath.Dir(real), name), filepath.Join("/usr/lib", name))
	}
	return jail
}

// inUserNamespace runs a program in a chroot as any user can: as root of a user namespace.
func inUserNamespace(jail string) *syscall.SysProcAttr {
	root := []syscall.SysProcIDMap{{Size: 1}}
	return &syscall.SysProcAttr{Chroot: jail, Cloneflags: unix.CLONE_NEWUSER, UidMappings: root, GidMappings: root}
}

// run makes a copy of cat send on a connection. It skips the test if the required user namespace is not permitted, as
// in a chroot.
func (p *plane) run(t *testing.T, path string, in *syscall.SysProcAttr) {
	t.Helper()
	c := p.connect(t)
	p.warm(c)
	server := os.NewFile(uintptr(c.server), "server")
	c.server = -1
	defer server.Close()
	if in != nil && in.Chroot != "" {
		path = strings.TrimPrefix(path, in.Chroot)
	}
	cmd := exec.Command(path)
	cmd.Args[0] = "cat" // busybox selects its applet by this name
	cmd.Stdin, cmd.Stdout, cmd.SysProcAttr = strings.NewReader("text"), server, in
	err := cmd.Run()
	if in != nil && in.Cloneflags&unix.CLONE_NEWUSER != 0 && errors.Is(err, unix.EPERM) {
		t.Skip("no user namespace: ", err)
	}
	check(t, err)
}

// asksAbout returns the data plane's request for a copy of cat that sends on a connection.
func asksAbout(t *testing.T, path string, in *syscall.SysProcAttr) program {
	t.Helper()
	p := accelerate(t, usual)
	p.run(t, path, in)
	next := p.programs(t)
	next() // this program
	return next()
}

// The same file on another mount has another path, which depends on who can mount: it does not share the file's
// verdict.
func TestVerdictsAreOfOneMount(t *testing.T) {
	text, err := exec.LookPath("cat")
	check(t, err)
	mounted := filepath.Join(t.TempDir(), "cat")
	check(t, os.WriteFile(mounted, nil, 0o755))
	p := accelerate(t, usual)
	check(t, unix.Mount(text, mounted, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
	p.run(t, mounted, nil)
	p.judge(allowed, asked)
	p.run(t, mounted, nil)
	if n := p.refused("unexamined"); n != 1 {
		t.Errorf("%d programs were not known yet, want the first", n)
	}
	p.run(t, text, nil)
	if n := p.refused("unexamined"); n != 2 {
		t.Errorf("%d programs were not known yet: the verdict on one path counts for another", n)
	}
}

// The same file has another path in a chroot, which does not share its verdict, since any user may run it there. A user
// namespace alone changes neither.
func TestVerdictsAreOfOneRoot(t *testing.T) {
	text, err := exec.LookPath("cat")
	check(t, err)
	jail := newJail(t, t.TempDir(), text)
	path := filepath.Join(jail, "usr/bin/cat")
	p := accelerate(t, usual)
	expect := func(unexamined, excluded uint64) {
		t.Helper()
		if u, e := p.refused("unexamined"), p.refused("executable"); u != unexamined || e != excluded {
			t.Errorf("%d programs were not known yet, want %d; %d excluded, want %d", u, unexamined, e, excluded)
		}
	}
	p.run(t, path, nil)
	p.judge(allowed, asked)
	expect(1, 0)
	p.run(t, path, &syscall.SysProcAttr{Chroot: jail})
	p.judge(unsafe, asked)
	expect(2, 0)
	p.run(t, path, &syscall.SysProcAttr{Chroot: jail})
	expect(2, 1)
	p.run(t, path, nil)
	p.run(t, path, inUserNamespace(jail))
	expect(2, 1)
}

// inChroot reports whether this process has another root directory than its mount namespace.
func inChroot(t *testing.T) bool {
	t.Helper()
	own, err := os.Stat("/")
	check(t, err)
	done := make(chan error)
	var root os.FileInfo
	go func() {
		runtime.LockOSThread() // never unlocked, as below
		ns, err := os.Open("/proc/thread-self/ns/mnt")
		if err == nil {
			defer ns.Close()
			err = unix.Unshare(unix.CLONE_FS)
		}
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS) // changes to the namespace's root
		}
		if err == nil {
			root, err = os.Stat("/")
		}
		done <- err
	}()
	check(t, <-done)
	return !os.SameFile(own, root)
}

// A server whose executable is outside its chroot, as with HAProxy, remains the same program.
func TestProgramsThatChroot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if inChroot(t) {
		t.Skip("runs in a chroot: this program's path in there is not the one that is seen from the next chroot")
	}
	p := accelerate(t, usual)
	l := p.listen(t)
	defer unix.Close(l)
	addr, err := unix.Getsockname(l)
	check(t, err)
	client, empty, done := socket(t, addr), t.TempDir(), make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread exits with this function
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			err = unix.Chroot(empty)
		}
		done <- cmp.Or(err, unix.Connect(client, addr))
	}()
	check(t, <-done)
	p.warm(accepted(t, client, l))
	if n := len(entries[fileKey, executableEntry](p, mapExecutables)); n != 1 {
		t.Errorf("%d programs are known, want the one", n)
	}
}
