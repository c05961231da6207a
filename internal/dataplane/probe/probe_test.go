// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	// Before Linux 5.11 the limit is charged; doctor lifts it first as well.
	if err := rlimit.RemoveMemlock(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(m.Run())
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: BPF and network namespaces")
	}
}

// TestFeatures asserts only what every kernel from 5.10 on has.
func TestFeatures(t *testing.T) {
	needRoot(t)
	always := map[string]bool{"bpf-syscall": true, "xdp-program": true, "tc-program": true, "mcpu-v3": true,
		"large-programs": true,
		"test-run-xdp":   true, "test-run-tc": true, "ringbuf": true, "lru-hash": true, "lpm-trie": true, "map-in-map": true,
		"batch-ops": true}
	for _, f := range Features() {
		err := f.Try()
		if err != nil && Reason(err) == "" {
			t.Errorf("%s: no reason for %v", f.Name, err)
		}
		if err != nil && always[f.Name] {
			t.Errorf("%s: %v", f.Name, err)
		}
		t.Logf("%s: %v", f.Name, err)
	}
}

// TestWithoutPower: what a process may not do is an error with a reason, and
// not taken for there.
func TestWithoutPower(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("load: %w", unix.EPERM), "operation not permitted"},
		{fmt.Errorf("x: %w", ebpf.ErrNotSupported), "not supported by this kernel"},
		{&ebpf.VerifierError{Cause: unix.EINVAL, Log: []string{"0: (85) call x#1", "invalid func unknown#181",
			"processed 0 insns"}},
			"refused by the verifier: invalid func unknown#181"},
	} {
		if got := Reason(c.err); got != c.want {
			t.Errorf("reason of %v: %q, want %q", c.err, got, c.want)
		}
	}
}

// TestRefusedProgramIsAnError anchors the probes: a load that cannot work fails.
func TestRefusedProgramIsAnError(t *testing.T) {
	needRoot(t)
	spec := pass(ebpf.XDP)
	spec.Instructions = spec.Instructions[:1] // falls off the end
	if err := load(spec); err == nil {
		t.Error("a program without an exit was loaded")
	}
	if err := Pin(t.TempDir()); err == nil {
		t.Error("a map was pinned outside of a bpffs")
	}
}

// TestLeavesNothing looks for objects by their name, for links, open files and
// threads in other namespaces. The kernel frees programs a little later.
func TestLeavesNothing(t *testing.T) {
	needRoot(t)
	for _, f := range Features() { // once before, since libraries keep some files
		_ = f.Try()
	}
	files, home := count(t, "/proc/self/fd"), namespaces(t)
	for _, f := range Features() {
		_ = f.Try()
	}
	if _, err := NativeMTU(); err != nil {
		t.Error(err)
	}
	if after := count(t, "/proc/self/fd"); after != files {
		t.Errorf("%d open files before, %d after", files, after)
	}
	if after := namespaces(t); len(after) != 1 || len(home) != 1 {
		t.Errorf("threads in namespaces %v before, %v after", home, after)
	}
	if links, err := netlink.LinkList(); err == nil {
		for _, l := range links {
			if strings.HasPrefix(l.Attrs().Name, objectName) {
				t.Errorf("left the link %s", l.Attrs().Name)
			}
		}
	}
	for end := time.Now().Add(time.Minute); leftovers(t) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("left %d programs and maps", leftovers(t))
		}
	}
}

func count(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func namespaces(t *testing.T) map[string]bool {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]bool)
	for _, task := range tasks {
		if ns, err := os.Readlink(task); err == nil {
			found[ns] = true
		}
	}
	return found
}

func leftovers(t *testing.T) int {
	t.Helper()
	names, err := ProgramNames()
	if err != nil {
		t.Fatal(err)
	}
	n := names[objectName]
	for id := ebpf.MapID(0); ; {
		next, err := ebpf.MapGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		if mapName(next) == objectName {
			n++
		}
		id = next
	}
}

func mapName(id ebpf.MapID) string {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return ""
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// TestPrograms attaches one program on every hook and reads them back.
func TestPrograms(t *testing.T) {
	needRoot(t)
	err := inScratch(func(outer, _ netlink.Link) error {
		if got, err := Programs(outer); err != nil || len(got) != 0 {
			t.Errorf("a new interface has %v, %v", got, err)
		}
		x, err := generic.program()
		if err != nil {
			return err
		}
		defer x.Close()
		if err := netlink.LinkSetXdpFdWithFlags(outer, x.FD(), int(link.XDPGenericMode)); err != nil {
			return err
		}
		return programsAfter(t, outer)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func programsAfter(t *testing.T, outer netlink.Link) error {
	p, err := ebpf.NewProgram(pass(ebpf.SchedCLS))
	if err != nil {
		return err
	}
	defer p.Close()
	want := "[xdp clsact-ingress]"
	if l, err := link.AttachTCX(link.TCXOptions{Interface: outer.Attrs().Index, Program: p,
		Attach: ebpf.AttachTCXEgress}); err == nil {
		defer l.Close()
		want = "[xdp clsact-ingress tcx-egress]"
	}
	if err := addClsact(outer, p); err != nil {
		return err
	}
	fresh, err := netlink.LinkByIndex(outer.Attrs().Index)
	if err != nil {
		return err
	}
	got, err := Programs(fresh)
	var hooks []string
	for _, p := range got {
		hooks = append(hooks, p.Hook)
		if p.Name != objectName || p.ID == 0 {
			t.Errorf("program %+v", p)
		}
	}
	if fmt.Sprint(hooks) != want {
		t.Errorf("got hooks %v, want %s", hooks, want)
	}
	return err
}

// TestDriverXDP: a veth can do native XDP, the loopback cannot.
func TestDriverXDP(t *testing.T) {
	needRoot(t)
	err := inScratch(func(outer, _ netlink.Link) error {
		veth, err := DriverXDP(outer.Attrs().Index)
		if errors.Is(err, ebpf.ErrNotSupported) {
			t.Skip("before Linux 6.3")
		}
		loopback, err2 := DriverXDP(1)
		if !veth.Has(XDPBasic|XDPRedirect) || loopback.Has(XDPBasic) || err2 != nil {
			t.Errorf("veth %b, loopback %b, %v", veth, loopback, err2)
		}
		if d := Driver(outer.Attrs().Name); d != "veth" {
			t.Errorf("driver of a veth is %q", d)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
