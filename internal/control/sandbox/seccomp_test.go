// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"encoding/binary"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// verdict runs the filter. The virtual machine of x/net is for packets, so that its words are big endian.
func verdict(t *testing.T, s Spec, arch, number uint32, args ...uint32) uint32 {
	t.Helper()
	vm, err := bpf.NewVM(s.filter())
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[offsetNumber:], number)
	binary.BigEndian.PutUint32(data[offsetArch:], arch)
	for i, a := range args {
		binary.BigEndian.PutUint32(data[offsetArgs+8*i:], a)
	}
	got, err := vm.Run(data)
	if err != nil {
		t.Fatal(err)
	}
	return uint32(got)
}

func ours() uint32 {
	return guard()[1].(bpf.JumpIf).Val
}

func TestFilterDenies(t *testing.T) {
	for _, number := range append(denied, deniedHere...) {
		if got := verdict(t, Spec{Network: true, KeepBPF: true}, ours(), number); got != deny.Val {
			t.Errorf("system call %d: %#x", number, got)
		}
	}
}

func TestFilterAllows(t *testing.T) {
	for _, number := range []uint32{
		unix.SYS_READ, unix.SYS_EXECVE, unix.SYS_OPENAT, unix.SYS_MMAP, unix.SYS_ACCEPT4, unix.SYS_RECVMSG, unix.SYS_FUTEX,
		unix.SYS_EPOLL_PWAIT, unix.SYS_GETRANDOM, unix.SYS_KILL, unix.SYS_SECCOMP,
	} {
		if got := verdict(t, Spec{}, ours(), number); got != allow.Val {
			t.Errorf("system call %d: %#x", number, got)
		}
	}
}

func TestFilterOfMaps(t *testing.T) {
	allowed := map[uint32]bool{1: true, 2: true, 3: true, 4: true, 15: true, 21: true, 24: true, 25: true,
		26: true, 27: true}
	for command := range uint32(64) {
		got := verdict(t, Spec{Network: true, KeepBPF: true}, ours(), unix.SYS_BPF, command)
		if (got == allow.Val) != allowed[command] || got != allow.Val && got != deny.Val {
			t.Errorf("bpf command %d: %#x", command, got)
		}
	}
}

func TestFilterOfSockets(t *testing.T) {
	route := []uint32{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}
	for family := range uint32(unix.AF_MAX) {
		inet := family == unix.AF_INET || family == unix.AF_INET6
		check := func(network, want bool) {
			t.Helper()
			if got := verdict(t, Spec{Network: network}, ours(), unix.SYS_SOCKET, family, 0, 1); (got == allow.Val) != want {
				t.Errorf("family %d, network %v: %#x", family, network, got)
			}
		}
		check(false, inet)
		check(true, inet || family == unix.AF_UNIX)
	}
	if got := verdict(t, Spec{}, ours(), unix.SYS_SOCKET, route...); got != allow.Val {
		t.Errorf("route netlink: %#x", got)
	}
}

// Of packet sockets nothing is left but writing; all else continues as without them.
func TestFilterOfPacketSockets(t *testing.T) {
	for name, c := range map[string]struct {
		number uint32
		args   []uint32
		denied bool
	}{
		"write":                    {unix.SYS_WRITE, nil, false},
		"send":                     {unix.SYS_SENDTO, []uint32{3, 1, 1, 0, 0, 0}, false},
		"send to another":          {unix.SYS_SENDTO, []uint32{3, 1, 1, 0, 0x1000, 20}, true},
		"bind":                     {unix.SYS_BIND, []uint32{3, 0x1000, 20}, true},
		"message":                  {unix.SYS_SENDMSG, []uint32{3, 0x1000, 0}, true},
		"messages":                 {unix.SYS_SENDMMSG, []uint32{3, 0x1000, 1, 0}, true},
		"ring":                     {unix.SYS_SETSOCKOPT, []uint32{3, unix.SOL_PACKET, unix.PACKET_RX_RING}, true},
		"other option":             {unix.SYS_SETSOCKOPT, []uint32{3, unix.SOL_TCP, unix.TCP_NODELAY}, false},
		"interfaces":               {unix.SYS_IOCTL, []uint32{3, unix.SIOCGIFCONF}, true},
		"change an interface":      {unix.SYS_IOCTL, []uint32{3, unix.SIOCSIFFLAGS}, true},
		"namespace of a socket":    {unix.SYS_IOCTL, []uint32{3, unix.SIOCGSKNS}, true},
		"request of another kind":  {unix.SYS_IOCTL, []uint32{3, unix.TIOCINQ}, false},
		"still no other namespace": {unix.SYS_SETNS, []uint32{3, 0}, true},
	} {
		got := verdict(t, Spec{Inject: true}, ours(), c.number, c.args...)
		if (got == deny.Val) != c.denied || got != deny.Val && got != allow.Val {
			t.Errorf("%s: %#x", name, got)
		}
		if without := verdict(t, Spec{}, ours(), c.number, c.args...); without != allow.Val && c.number != unix.SYS_SETNS {
			t.Errorf("%s without packet sockets: %#x", name, without)
		}
	}
	vm, err := bpf.NewVM(Spec{Inject: true}.pointer().filter())
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 64)
	binary.BigEndian.PutUint32(data[offsetNumber:], unix.SYS_SENDTO)
	binary.BigEndian.PutUint32(data[offsetArch:], ours())
	binary.BigEndian.PutUint32(data[offsetArgs+8*4+4:], 1) // the upper half of the address
	if got, err := vm.Run(data); err != nil || uint32(got) != deny.Val {
		t.Errorf("an address above 4 GiB: %#x, %v", got, err)
	}
}

func (s Spec) pointer() *Spec { return &s }

func TestFilterOfClone(t *testing.T) {
	thread := uint32(unix.CLONE_VM | unix.CLONE_FS | unix.CLONE_FILES | unix.CLONE_SIGHAND | unix.CLONE_THREAD)
	if got := verdict(t, Spec{}, ours(), unix.SYS_CLONE, thread); got != allow.Val {
		t.Errorf("thread: %#x", got)
	}
	for bit := range 32 {
		flag := uint32(1) << bit
		got := verdict(t, Spec{}, ours(), unix.SYS_CLONE, thread|flag)
		if (got == deny.Val) != (flag&namespaceFlags != 0) {
			t.Errorf("flag %#x: %#x", flag, got)
		}
	}
}

func TestFilterKillsOtherNumbers(t *testing.T) {
	if got := verdict(t, Spec{}, unix.AUDIT_ARCH_I386, unix.SYS_READ); got != kill.Val {
		t.Errorf("i386: %#x", got)
	}
	if ours() != unix.AUDIT_ARCH_X86_64 {
		return
	}
	if got := verdict(t, Spec{}, ours(), 0x40000000|unix.SYS_READ); got != kill.Val {
		t.Errorf("x32: %#x", got)
	}
}
