// SPDX-License-Identifier: Apache-2.0

// Package smoke tests the machines of the kernel matrix rather than Kerb: whether a machine has the file systems,
// devices, hooks and tools that Kerb's tests need. If it fails, failures of other packages on that kernel are not
// meaningful.
package smoke

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	xdpDrop = 1
	xdpPass = 2
	tcOK    = 0
)

func TestMain(m *testing.M) {
	if os.Getuid() == 0 {
		if err := rlimit.RemoveMemlock(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
}

func TestTestdata(t *testing.T) {
	text, err := os.ReadFile("testdata/hello.txt")
	must(t, err)
	if string(text) != "hello\n" {
		t.Fatalf("testdata/hello.txt holds %q", text)
	}
}

// TestModules checks that the matrix's kernel loaded all modules.
func TestModules(t *testing.T) {
	if refused, err := os.ReadFile("/run/not-loaded"); err == nil {
		t.Fatalf("not loaded:\n%s", refused)
	}
}

func TestTemporaryFiles(t *testing.T) {
	must(t, os.WriteFile(filepath.Join(t.TempDir(), "file"), []byte("x"), 0o600))
}

func TestTools(t *testing.T) {
	for _, tool := range []string{"ip", "tc"} {
		out, err := exec.Command(tool, "-V").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "iproute2") {
			t.Errorf("%s -V: %v\n%s", tool, err, out)
		}
	}
}

func TestBPFFS(t *testing.T) {
	needRoot(t)
	m := newMap(t, ebpf.Array, 1)
	path := fmt.Sprintf("/sys/fs/bpf/kkm_smoke_%d", os.Getpid())
	must(t, m.Pin(path))
	defer m.Unpin()
	loaded, err := ebpf.LoadPinnedMap(path, nil)
	must(t, err)
	loaded.Close()
}

func TestBTF(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
		t.Fatal(err)
	}
}

// TestLinks creates one device of each kind that tests use. Kernels outside the matrix may lack some.
func TestLinks(t *testing.T) {
	inNamespace(t)
	dummy := &netlink.Dummy{LinkAttrs: attrs("kkmd0")}
	add(t, dummy)
	add(t, &netlink.Bridge{LinkAttrs: attrs("kkmb0")})
	vlan := attrs("kkmv0")
	vlan.ParentIndex = index(t, "kkmd0")
	add(t, &netlink.Vlan{LinkAttrs: vlan, VlanId: 7})
	add(t, &netlink.Vxlan{LinkAttrs: attrs("kkmx0"), VxlanId: 7, Port: 4789})
}

func TestXDPTestRun(t *testing.T) {
	needRoot(t)
	p := newProgram(t, ebpf.XDP, asm.Instructions{asm.Mov.Imm(asm.R0, xdpDrop), asm.Return()})
	got, _, err := p.Test(make([]byte, 64))
	must(t, err)
	if got != xdpDrop {
		t.Fatalf("the program returned %d, want %d", got, xdpDrop)
	}
}

// TestXDPNative sends frames into a veth whose program counts them.
func TestXDPNative(t *testing.T) {
	inNamespace(t)
	a, b := veth(t)
	counter, p := countingProgram(t, ebpf.XDP, xdpPass)
	l, err := link.AttachXDP(link.XDPOptions{Program: p, Interface: a, Flags: link.XDPDriverMode})
	must(t, err)
	defer l.Close()
	expectCount(t, counter, b)
}

// TestTCX needs Linux 6.6; earlier kernels return a typed error, which Kerb relies on.
func TestTCX(t *testing.T) {
	inNamespace(t)
	a, b := veth(t)
	counter, p := countingProgram(t, ebpf.SchedCLS, tcOK)
	l, err := link.AttachTCX(link.TCXOptions{Program: p, Interface: a, Attach: ebpf.AttachTCXIngress})
	if !kernelAtLeast(t, 6, 6) {
		if !errors.Is(err, ebpf.ErrNotSupported) {
			t.Fatalf("TCX before Linux 6.6: got %v, want ErrNotSupported", err)
		}
		return
	}
	must(t, err)
	defer l.Close()
	expectCount(t, counter, b)
}

func TestClsact(t *testing.T) {
	inNamespace(t)
	a, b := veth(t)
	counter, p := countingProgram(t, ebpf.SchedCLS, tcOK)
	must(t, netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: a, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}}))
	must(t, netlink.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: a, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
		Fd: p.FD(), Name: "kkm", DirectAction: true}))
	expectCount(t, counter, b)
}

// TestRingBuffer passes one record from a program to user space.
func TestRingBuffer(t *testing.T) {
	needRoot(t)
	const record = 0x6b657262
	m := newMap(t, ebpf.RingBuf, uint32(os.Getpagesize()))
	p := newProgram(t, ebpf.XDP, asm.Instructions{
		asm.Mov.Imm(asm.R1, record),
		asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -8),
		asm.Mov.Imm(asm.R3, 8),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.Mov.Imm(asm.R0, xdpPass),
		asm.Return(),
	})
	reader, err := ringbuf.NewReader(m)
	must(t, err)
	defer reader.Close()
	_, _, err = p.Test(make([]byte, 64))
	must(t, err)
	reader.SetDeadline(time.Now().Add(30 * time.Second))
	got, err := reader.Read()
	must(t, err)
	if string(got.RawSample) != "brek\x00\x00\x00\x00" {
		t.Fatalf("the record is %x", got.RawSample)
	}
}

// TestSockOps attaches to a separate cgroup.
func TestSockOps(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(cgroup2(t), fmt.Sprintf("kkm-smoke-%d", os.Getpid()))
	must(t, os.Mkdir(dir, 0o755))
	defer os.Remove(dir)
	p := newProgram(t, ebpf.SockOps, asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()})
	l, err := link.AttachCgroup(link.CgroupOptions{Path: dir, Attach: ebpf.AttachCGroupSockOps, Program: p})
	must(t, err)
	l.Close()
}

// countingProgram counts frames in a map and returns the verdict.
func countingProgram(t *testing.T, kind ebpf.ProgramType, verdict int32) (*ebpf.Map, *ebpf.Program) {
	t.Helper()
	m := newMap(t, ebpf.Array, 1)
	return m, newProgram(t, kind, asm.Instructions{
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		asm.Mov.Imm(asm.R0, verdict).WithSymbol("out"),
		asm.Return(),
	})
}

// expectCount sends one frame out of the device and waits until the program at the other end has counted it.
func expectCount(t *testing.T, counter *ebpf.Map, device int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	frame := make([]byte, 60)
	copy(frame, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x88\xb5") // broadcast, local experimental EtherType
	must(t, unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: device}))
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		var n uint64
		must(t, counter.Lookup(uint32(0), &n))
		if n > 0 {
			return
		}
	}
	t.Fatal("the program saw no frame")
}

func newMap(t *testing.T, kind ebpf.MapType, entries uint32) *ebpf.Map {
	t.Helper()
	spec := &ebpf.MapSpec{Name: "kkm", Type: kind, MaxEntries: entries}
	if kind == ebpf.Array {
		spec.KeySize, spec.ValueSize = 4, 8
	}
	m, err := ebpf.NewMap(spec)
	must(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func newProgram(t *testing.T, kind ebpf.ProgramType, code asm.Instructions) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "kkm", Type: kind, Instructions: code, License: "Dual BSD/GPL"})
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// inNamespace moves the test into a new network namespace, which ends with the test's thread: a locked thread is not
// reused.
func inNamespace(t *testing.T) {
	t.Helper()
	needRoot(t)
	runtime.LockOSThread()
	ns, err := netns.New()
	must(t, err)
	t.Cleanup(func() { ns.Close() })
}

// veth creates a pair that is up and returns the two indexes.
func veth(t *testing.T) (a, b int) {
	t.Helper()
	add(t, &netlink.Veth{LinkAttrs: attrs("kkm0"), PeerName: "kkm1"})
	for _, name := range []string{"kkm0", "kkm1"} {
		l, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(l))
	}
	return index(t, "kkm0"), index(t, "kkm1")
}

func attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

func add(t *testing.T, l netlink.Link) {
	t.Helper()
	err := netlink.LinkAdd(l)
	if errors.Is(err, unix.EOPNOTSUPP) && os.Getenv("KERB_MATRIX") == "" {
		t.Skipf("this kernel has no %s", l.Type())
	}
	if err != nil {
		t.Fatalf("add %s %s: %v", l.Type(), l.Attrs().Name, err)
	}
}

func index(t *testing.T, name string) int {
	t.Helper()
	i, err := net.InterfaceByName(name)
	must(t, err)
	return i.Index
}

// cgroup2 returns the mount point of cgroup v2: machines that also run cgroup v1 do not have it at /sys/fs/cgroup.
func cgroup2(t *testing.T) string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/mounts")
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[2] == "cgroup2" {
			return f[1]
		}
	}
	t.Fatal("no cgroup2 is mounted")
	return ""
}

func kernelAtLeast(t *testing.T, major, minor int) bool {
	t.Helper()
	var name unix.Utsname
	must(t, unix.Uname(&name))
	release := unix.ByteSliceToString(name.Release[:])
	var a, b int
	if _, err := fmt.Sscanf(release, "%d.%d", &a, &b); err != nil {
		t.Fatalf("release %q: %v", release, err)
	}
	return a > major || a == major && b >= minor
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
