// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"fmt"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data. Arguments are 64 bits wide; only the lower half of those examined counts for the
// kernel, and it comes first on both of our architectures.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

var (
	allow = bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW}
	deny  = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	// absent makes libraries use the older system call, whose arguments a filter can see.
	absent = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)}
	// unsupported makes the C library fall back to writing, which limits of the process and the disk quota see.
	unsupported = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO | uint32(unix.EOPNOTSUPP)}
	// ignored answers success without the call.
	ignored = bpf.RetConstant{Val: unix.SECCOMP_RET_ERRNO}
	kill    = bpf.RetConstant{Val: unix.SECCOMP_RET_KILL_PROCESS}
)

// mapCommands are the operations of bpf(2) on maps whose descriptor the program has, by enum bpf_cmd.
var mapCommands = []uint32{
	1,  // BPF_MAP_LOOKUP_ELEM
	2,  // BPF_MAP_UPDATE_ELEM
	3,  // BPF_MAP_DELETE_ELEM
	4,  // BPF_MAP_GET_NEXT_KEY
	15, // BPF_OBJ_GET_INFO_BY_FD
	21, // BPF_MAP_LOOKUP_AND_DELETE_ELEM
	24, // BPF_MAP_LOOKUP_BATCH
	25, // BPF_MAP_LOOKUP_AND_DELETE_BATCH
	26, // BPF_MAP_UPDATE_BATCH
	27, // BPF_MAP_DELETE_BATCH
}

// denied are system calls that a control plane has no use for, and that have been a way to more rights, or report
// others. Most need a capability as well. Memory in files without a directory counts in no process as resident, and
// could be executed after it was written; SysV objects and message queues are kernel memory that no limit of the
// process counts.
var denied = []uint32{
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE,
	unix.SYS_PROCESS_MRELEASE,
	unix.SYS_KCMP, unix.SYS_PIDFD_GETFD,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_FSOPEN,
	unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT,
	unix.SYS_STATMOUNT, unix.SYS_LISTMOUNT,
	unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_FANOTIFY_INIT,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
	unix.SYS_SYSLOG,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT,
	unix.SYS_MEMFD_CREATE, unix.SYS_MEMFD_SECRET, unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_MSGGET, unix.SYS_SEMGET,
	unix.SYS_MQ_OPEN,
}

const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET

const (
	netlinkRoute   = 0   // NETLINK_ROUTE
	socketTypeMask = 0xf // the rest of the argument are SOCK_CLOEXEC and SOCK_NONBLOCK
)

// filter is the program for seccomp. A system call that nothing is said about is allowed.
func (s *Spec) filter() []bpf.Instruction {
	out := guard()
	out = append(out, on(unix.SYS_BPF, oneOf(0, mapCommands...))...)
	out = append(out, on(unix.SYS_CLONE, noBits(0, namespaceFlags))...)
	out = append(out, on(unix.SYS_CLONE3, []bpf.Instruction{absent})...)
	out = append(out, on(unix.SYS_PRCTL, noneOf(0, unix.PR_SET_PDEATHSIG))...)
	out = append(out, on(unix.SYS_SOCKET, s.sockets())...)
	out = append(out, on(unix.SYS_SOCKETPAIR, s.socketPairs())...)
	out = append(out, on(unix.SYS_MMAP, noSharedMemory())...)
	out = append(out, on(unix.SYS_FALLOCATE, []bpf.Instruction{unsupported})...)
	out = append(out, on(unix.SYS_SETSOCKOPT, s.socketOptions())...)
	if s.Inject {
		out = append(out, packetSockets()...)
	}
	for _, number := range append(denied, deniedHere...) {
		out = append(out, on(number, []bpf.Instruction{deny})...)
	}
	return append(out, allow)
}

// on runs body, all of whose paths return, for one system call. The number is in the accumulator before and after.
func on(number uint32, body []bpf.Instruction) []bpf.Instruction {
	return append([]bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: number, SkipTrue: uint8(len(body))}}, body...)
}

func loadArg(n uint32) bpf.Instruction {
	return bpf.LoadAbsolute{Off: offsetArgs + 8*n, Size: 4}
}

// when returns what if the accumulator is value.
func when(value uint32, what bpf.Instruction) []bpf.Instruction {
	return []bpf.Instruction{bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: value, SkipTrue: 1}, what}
}

func oneOf(arg uint32, values ...uint32) []bpf.Instruction {
	out := []bpf.Instruction{loadArg(arg)}
	for _, v := range values {
		out = append(out, when(v, allow)...)
	}
	return append(out, deny)
}

func noneOf(arg uint32, values ...uint32) []bpf.Instruction {
	out := []bpf.Instruction{loadArg(arg)}
	for _, v := range values {
		out = append(out, when(v, deny)...)
	}
	return append(out, allow)
}

func noBits(arg, bits uint32) []bpf.Instruction {
	return []bpf.Instruction{loadArg(arg), bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: bits, SkipTrue: 1}, allow, deny}
}

// sockets has no Unix sockets without the network: Landlock before Linux 7.0 does not restrict connecting to those in
// the file system, of which many nodes have some that anyone can use.
func (s *Spec) sockets() []bpf.Instruction {
	families := []uint32{unix.AF_INET, unix.AF_INET6}
	if s.Network {
		families = append(families, unix.AF_UNIX)
	}
	out := []bpf.Instruction{loadArg(0)}
	for _, family := range families {
		out = append(out, when(family, allow)...)
	}
	out = append(out, when(unix.AF_NETLINK, bpf.Jump{Skip: 1})...)
	return append(append(out, deny), oneOf(2, netlinkRoute)...)
}

// socketPairs has no datagrams without the network, as one of these could send to any Unix socket.
func (s *Spec) socketPairs() []bpf.Instruction {
	types := []uint32{unix.SOCK_STREAM, unix.SOCK_SEQPACKET}
	if s.Network {
		types = append(types, unix.SOCK_DGRAM)
	}
	out := []bpf.Instruction{loadArg(0), bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.AF_UNIX, SkipTrue: 1}, deny,
		loadArg(1), bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: socketTypeMask}}
	for _, t := range types {
		out = append(out, when(t, allow)...)
	}
	return append(out, deny)
}

// packetSockets leaves of packet sockets only that they are written to: not another interface of their namespace, not
// rings, not questions about it. The price is that all other sockets lose the same, which without a network is none.
// That nothing is received is the agent's part: a filter that is locked.
func packetSockets() []bpf.Instruction {
	var out []bpf.Instruction
	for _, number := range []uint32{unix.SYS_BIND, unix.SYS_SENDMSG, unix.SYS_SENDMMSG} {
		out = append(out, on(number, []bpf.Instruction{deny})...)
	}
	out = append(out, on(unix.SYS_SENDTO, isNull(4))...)
	return append(out, on(unix.SYS_IOCTL, noSocketIoctl())...)
}

// noSharedMemory has no anonymous memory that children share: it counts in no process as its own, and outlives all
// mappings but one. Shared mappings of files remain; maps of the data plane need them.
func noSharedMemory() []bpf.Instruction {
	const both = unix.MAP_SHARED | unix.MAP_ANONYMOUS // MAP_SHARED_VALIDATE has the bit of MAP_SHARED
	out := []bpf.Instruction{loadArg(3), bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: both}}
	return append(append(out, when(both, deny)...), allow)
}

// socketOptions keeps the size of socket buffers, which are kernel memory, as it is. A program cannot depend on the
// size: the kernel does not take it literally either.
func (s *Spec) socketOptions() []bpf.Instruction {
	out := []bpf.Instruction{loadArg(1)}
	if s.Inject {
		out = append(out, when(unix.SOL_PACKET, deny)...)
	}
	out = append(out, bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.SOL_SOCKET, SkipTrue: 1}, allow, loadArg(2))
	for _, name := range []uint32{unix.SO_SNDBUF, unix.SO_RCVBUF, unix.SO_SNDBUFFORCE, unix.SO_RCVBUFFORCE} {
		out = append(out, when(name, ignored)...)
	}
	return append(out, allow)
}

// isNull allows a null pointer only, both halves of which are examined.
func isNull(arg uint32) []bpf.Instruction {
	high := bpf.LoadAbsolute{Off: offsetArgs + 8*arg + 4, Size: 4}
	out := append([]bpf.Instruction{loadArg(arg)}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1}, deny, high)
	return append(append(out, when(0, allow)...), deny)
}

// noSocketIoctl has no requests of SIOC*, which report the interfaces of a socket's namespace or change them.
func noSocketIoctl() []bpf.Instruction {
	const kind, socketKind = 0xff00, 0x8900
	out := []bpf.Instruction{loadArg(1), bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: kind}}
	return append(append(out, when(socketKind, deny)...), allow)
}

// assemble makes of the instructions what the kernel takes.
func assemble(program []bpf.Instruction) ([]unix.SockFilter, error) {
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("assemble filter: %w", err)
	}
	out := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		out[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return out, nil
}
