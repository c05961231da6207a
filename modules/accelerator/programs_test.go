// SPDX-License-Identifier: Apache-2.0

package accelerator

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// programs returns a function that waits for the next program that the data plane asks about.
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

// programPath is this program's.
func programPath(t *testing.T) string {
	t.Helper()
	path, err := os.Readlink("/proc/self/exe")
	check(t, err)
	return path
}

// The table, the owner of the files, and the config decide; the config has the last word.
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
		{``, "/usr/sbin/haproxy", false, unsafe, "splice-*"},
		{``, "/usr/local/bin/envoy", false, unsafe, "FIONREAD"},
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

// rootDir is a directory that only root can change, and whether others can change the one above it, as in an initramfs.
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
		want   string // if it is another path
		others bool   // can change it
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
			}()
			if c.change != nil {
				check(t, c.change(at))
			}
			want := c.want
			if want == "" {
				want = at
			}
			if got := asksAbout(t, at); got.Path != want || got.Changeable != (c.others || others) {
				t.Errorf("%s, changeable: %v; want %s", got.Path, got.Changeable, want)
			}
		})
	}
}

// asksAbout is what the data plane reports of a copy of cat that sends on a connection.
func asksAbout(t *testing.T, path string) program {
	t.Helper()
	p := accelerate(t, usual)
	c := p.connect(t)
	p.warm(c)
	next := p.programs(t)
	next() // this one
	server := os.NewFile(uintptr(c.server), "server")
	c.server = -1
	defer server.Close()
	cmd := exec.Command(path, "/proc/self/status")
	cmd.Args[0], cmd.Stdout = "cat", server // busybox goes by that name
	check(t, cmd.Run())
	return next()
}

// The same file on another mount has another path, which who may mount chooses: its verdict is not that of the file
// elsewhere.
func TestVerdictsAreOfOneMount(t *testing.T) {
	text, err := exec.LookPath("cat")
	check(t, err)
	mounted := filepath.Join(t.TempDir(), "cat")
	check(t, os.WriteFile(mounted, nil, 0o755))
	p := accelerate(t, usual)
	run := func(path string) {
		t.Helper()
		c := p.connect(t)
		p.warm(c)
		server := os.NewFile(uintptr(c.server), "server")
		c.server = -1
		defer server.Close()
		cmd := exec.Command(path, "/proc/self/status")
		cmd.Args[0], cmd.Stdout = "cat", server
		check(t, cmd.Run())
	}
	check(t, unix.Mount(text, mounted, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
	run(mounted)
	p.judge(allowed, asked)
	run(mounted)
	if n := p.refused("unexamined"); n != 1 {
		t.Errorf("%d programs were not known yet, want the first", n)
	}
	run(text)
	if n := p.refused("unexamined"); n != 2 {
		t.Errorf("%d programs were not known yet: the verdict on one path counts for another", n)
	}
}
