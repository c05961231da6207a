// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/dataplane/probe"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/paths"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: BPF and network namespaces")
	}
}

// wellFormed: every finding says what and how, and what is not good has a remedy.
func wellFormed(t *testing.T, checks []Check) {
	t.Helper()
	seen := make(map[string]bool)
	for _, c := range checks {
		if c.Name == "" || c.Found == "" || seen[c.Name] || !slices.Contains([]Status{OK, Warn, Fail}, c.Status) {
			t.Errorf("malformed: %+v", c)
		}
		if (c.Status != OK) != (c.Remedy != "") {
			t.Errorf("status and remedy do not go together: %+v", c)
		}
		seen[c.Name] = true
	}
}

func statusOf(checks []Check, name string) Status {
	i := slices.IndexFunc(checks, func(c Check) bool { return c.Name == name })
	if i < 0 {
		return ""
	}
	return checks[i].Status
}

func TestRun(t *testing.T) {
	needRoot(t)
	checks := Run(t.Context(), Options{})
	wellFormed(t, checks)
	for _, name := range []string{"kernel", "CAP_BPF", "feature bpf-syscall", "feature ringbuf", "interface lo"} {
		if statusOf(checks, name) != OK {
			t.Errorf("%s: %q in %+v", name, statusOf(checks, name), checks)
		}
	}
}

// TestRunWithoutPower runs with no effective capability: much fails, each with
// a remedy, and nothing is taken for there.
func TestRunWithoutPower(t *testing.T) {
	needRoot(t)
	var checks []Check
	withoutPower(t, func() { checks = Run(t.Context(), Options{}) })
	wellFormed(t, checks)
	for _, name := range []string{"CAP_BPF", "CAP_NET_ADMIN", "feature xdp-program", "bpffs"} {
		if statusOf(checks, name) != Fail {
			t.Errorf("%s: %q", name, statusOf(checks, name))
		}
	}
	if Worst(checks) != Fail {
		t.Error("the worst of it is not fail")
	}
	for _, c := range checks { // what could not be tried says nothing of the kernel
		if strings.Contains(c.Remedy, "boot Linux") && c.Name != "control planes" {
			t.Errorf("another kernel is asked for: %+v", c)
		}
	}
	if got := statusOf(checks, "locked memory"); got != OK && !olderThan(release(), 5, 11) {
		t.Errorf("locked memory: %q", got)
	}
}

func TestConfinement(t *testing.T) {
	whole, open := judgeConfinement(nil), judgeConfinement([]string{"no Landlock"})
	wellFormed(t, []Check{whole})
	wellFormed(t, []Check{open})
	if whole.Status != OK || open.Status != Warn || open.Found != "no Landlock" {
		t.Errorf("got %+v and %+v", whole, open)
	}
}

func withoutPower(t *testing.T, f func()) {
	t.Helper()
	runtime.LockOSThread() // capabilities are a thread's
	defer runtime.UnlockOSThread()
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var full [2]unix.CapUserData
	if err := unix.Capget(&head, &full[0]); err != nil {
		t.Fatal(err)
	}
	none := full
	none[0].Effective, none[1].Effective = 0, 0
	if err := unix.Capset(&head, &none[0]); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Capset(&head, &full[0]); err != nil {
			t.Error(err)
		}
	}()
	f()
}

func TestRunStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if checks := Run(ctx, Options{}); len(checks) != 0 {
		t.Errorf("examined after the end: %v", checks)
	}
}

// TestMeanings: every feature that is probed has a meaning and the reverse.
func TestMeanings(t *testing.T) {
	probed := make(map[string]bool)
	for _, f := range probe.Features() {
		probed[f.Name] = true
		if m := meanings[f.Name]; m.status == "" || m.lost == "" || m.since == "" {
			t.Errorf("%s has no meaning", f.Name)
		}
	}
	for name := range meanings {
		if !probed[name] {
			t.Errorf("%s is not probed", name)
		}
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		feature string
		err     error
		status  Status
		remedy  string
	}{
		{"ringbuf", nil, OK, ""},
		{"fentry", unix.EPERM, OK, ""},
		{"lpm-trie", ebpf.ErrNotSupported, Fail, "Linux 4.11"},
		{"lpm-trie", fmt.Errorf("create: %w", unix.EPERM), Fail, "sudo"},
		{"tcx", fmt.Errorf("%w: %w", probe.ErrNoNamespace, unix.EPERM), Warn, "sudo"},
		{"batch-ops", unix.EINVAL, Warn, "Linux 5.6"},
	} {
		got := judge(c.feature, c.err)
		wellFormed(t, []Check{got})
		if got.Status != c.status || !strings.Contains(got.Remedy, c.remedy) {
			t.Errorf("%s, %v: got %+v", c.feature, c.err, got)
		}
	}
}

func TestVersion(t *testing.T) {
	for release, want := range map[string]Status{
		"6.18.44-fc": OK, "5.10.0-33-amd64": OK, "5.9.16": Fail, "4.19": Fail, "nonsense": Warn, "10.0.1": OK,
	} {
		if got := version(release); got.Status != want {
			t.Errorf("%s: %+v", release, got)
		}
	}
}

func TestCapabilities(t *testing.T) {
	none := judgeCapabilities(0)
	wellFormed(t, none)
	if statusOf(none, "CAP_BPF") != Fail || statusOf(none, "CAP_SYS_ADMIN") != Warn {
		t.Errorf("without any: %+v", none)
	}
	admin := judgeCapabilities(1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN)
	if statusOf(admin, "CAP_BPF") != OK || statusOf(admin, "CAP_NET_BROADCAST") != Warn {
		t.Errorf("with CAP_SYS_ADMIN: %+v", admin)
	}
}

func TestBTFFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vmlinux")
	if got := btfFile(path); got.Status != Warn {
		t.Errorf("missing: %+v", got)
	}
	for content, want := range map[string]Status{"": Warn, "ELF": Warn, "\x9f\xeb\x01": OK, "\xeb\x9f\x01": OK} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := btfFile(path); got.Status != want {
			t.Errorf("%q: %+v", content, got)
		}
	}
}

func TestBPFFS(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "not", "there")
	got := bpffs(dir)
	if got.Status != Fail || got.Remedy != "mount -t bpf -o mode=700 bpf "+dir {
		t.Errorf("on another file system: %+v", got)
	}
	for dir, want := range map[string]string{"/sys/fs/bpf": "/sys/fs/bpf", "/sys/fs/bpf/kerb": "/sys/fs/bpf",
		"/sys/fs/bpfx": "/sys/fs/bpfx"} {
		if got := bpffsRoot(dir); got != want {
			t.Errorf("%s would be mounted at %s", dir, got)
		}
	}
}

func TestSpace(t *testing.T) {
	for free, want := range map[uint64]Status{0: Fail, fullSpace - 1: Fail, fullSpace: Warn, lowSpace: OK} {
		got := judgeSpace("/var/lib/kerb", "/var/lib", free)
		wellFormed(t, []Check{got})
		if got.Status != want {
			t.Errorf("%d bytes: %+v", free, got)
		}
	}
	if got := space("/proc/kerb"); got.Status != Fail {
		t.Errorf("a file system that is full by nature: %+v", got)
	}
	if got := space(t.TempDir()); got.Status == "" || got.Found == "" {
		t.Errorf("got %+v", got)
	}
}

func TestSize(t *testing.T) {
	for bytes, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 8 << 20: "8.0 MiB",
		3 << 39: "1.5 TiB", math.MaxUint64: "unlimited"} {
		if got := size(bytes); got != want {
			t.Errorf("%d: %s, want %s", bytes, got, want)
		}
	}
}

func TestRecognize(t *testing.T) {
	got := recognize(map[string]int{"cil_from_contai": 3, "cil_to_container": 1, "xdp_dispatcher": 1, "kerb_abc": 9,
		"": 2})
	if !slices.Equal(got, []string{"Cilium", "libxdp or bpfman"}) {
		t.Errorf("got %v", got)
	}
}

func TestModes(t *testing.T) {
	for features, want := range map[probe.XDPFeatures]string{
		0:                                 "generic only",
		probe.XDPRedirect:                 "generic only",
		probe.XDPBasic:                    "native, generic",
		probe.XDPBasic | probe.XDPFrags:   "native, native-frags, generic",
		probe.XDPBasic | probe.XDPOffload: "native, offload, generic",
	} {
		if got := modes(features); got != want {
			t.Errorf("%b: %s, want %s", features, got, want)
		}
	}
}

// TestForeignXDP puts another's program on a veth, and then one of Kerb's name.
func TestForeignXDP(t *testing.T) {
	needRoot(t)
	lab, err := netlab.NewIn("kdoc")
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	h, err := lab.Host("a", netlab.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	err = lab.Node().Do(func() error {
		return errors.Join(
			runXDP(h.Outer(), "stranger", func(checks []Check) { wantForeign(t, checks, "interface "+h.Outer()) }),
			runXDP(h.Outer(), "kerb_abc", func(checks []Check) {
				if s := statusOf(checks, "interface "+h.Outer()); s != "" {
					t.Errorf("an own program is taken for foreign: %v", checks)
				}
			}))
	})
	if err != nil {
		t.Fatal(err)
	}
}

func wantForeign(t *testing.T, checks []Check, name string) {
	t.Helper()
	wellFormed(t, checks)
	i := slices.IndexFunc(checks, func(c Check) bool { return c.Name == name })
	if i < 0 || checks[i].Status != Warn || !strings.Contains(checks[i].Found, "xdp stranger (id ") ||
		!strings.Contains(checks[i].Remedy, "xdp off") {
		t.Errorf("got %+v", checks)
	}
}

func runXDP(iface, name string, look func([]Check)) error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		return err
	}
	defer p.Close()
	l, err := netlink.LinkByName(iface)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetXdpFd(l, p.FD()); err != nil {
		return err
	}
	look(interfaces(Options{}))
	return netlink.LinkSetXdpFd(l, -1)
}

func TestPrint(t *testing.T) {
	var out strings.Builder
	err := Print(&out, []Check{ok("kernel", "Linux %s", "6.1"), bad(Fail, "bpffs", "mount -t bpf bpf /x", "not mounted")},
		"wrong")
	want := `ok    kernel  Linux 6.1
fail  bpffs   not mounted
              -> mount -t bpf bpf /x

1 ok, 0 warnings, 1 wrong
`
	if err != nil || out.String() != want {
		t.Errorf("%v, printed:\n%s", err, out.String())
	}
}

// TestLeavesNothing: files, threads' namespaces, links and pins are as before.
func TestLeavesNothing(t *testing.T) {
	needRoot(t)
	Run(t.Context(), Options{}) // libraries keep some files from the first time
	before := settled(t)
	Run(t.Context(), Options{Paths: paths.Default()})
	if after := settled(t); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// settled waits for threads that are ending.
func settled(t *testing.T) string {
	t.Helper()
	for now := traces(t); ; {
		time.Sleep(100 * time.Millisecond) // a thread that is ending does not stay for so long
		before := now
		if now = traces(t); now == before {
			return now
		}
	}
}

func traces(t *testing.T) string {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	spaces := make(map[string]bool)
	tasks, _ := filepath.Glob("/proc/self/task/*/ns/net")
	for _, task := range tasks {
		if ns, err := os.Readlink(task); err == nil {
			spaces[ns] = true
		}
	}
	pins, _ := filepath.Glob(fmt.Sprintf("/sys/fs/bpf/kerbprobe-%d*", os.Getpid())) // others may run at the same time
	links, _ := filepath.Glob("/sys/class/net/kerbprobe*")
	return fmt.Sprint(len(fds), spaces, pins, links)
}

// The limits of the unit are those that systemd has loaded: `systemctl show` prints groups as their calls.
func TestUnit(t *testing.T) {
	const complete = "read seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self"
	for _, c := range []struct {
		filter, delegated string
		calls, delegation Status
	}{
		{complete, "memory pids", OK, OK},
		{"", "memory pids", OK, OK},
		{"read write", "", Fail, Warn},
		{"read seccomp", "pids", Warn, Warn},
		{"~seccomp:EPERM reboot", "memory", Fail, OK},
		{"~reboot", "memory", OK, OK},
	} {
		checks := judgeUnit(properties("LoadState=loaded\nSystemCallFilter=" + c.filter + "\nDelegateControllers=" +
			c.delegated + "\n"))
		wellFormed(t, checks)
		if statusOf(checks, "unit system calls") != c.calls || statusOf(checks, "unit delegation") != c.delegation {
			t.Errorf("%+v: %+v", c, checks)
		}
	}
	if checks := judgeUnit(properties("LoadState=not-found\n")); len(checks) != 0 {
		t.Errorf("without a unit: %+v", checks)
	}
}
