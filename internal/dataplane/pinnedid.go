// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// openPin opens a pinned program, map or link. It is used for everything that each change reads of all chains, modules
// and attach points: package ebpf also reads the types of each program that it opens, and /proc for each map and link,
// which takes longer than the rest of the observation.
func openPin(path string) (fd int, err error) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return 0, err
	}
	fd, err = bpfCall(unix.BPF_OBJ_GET, &struct {
		pathname unsafe.Pointer
		fd       uint32
		flags    uint32
	}{pathname: unsafe.Pointer(name)})
	if err != nil {
		return 0, fmt.Errorf("open pin %s: %w", path, err)
	}
	return fd, nil
}

// pinnedMap opens a pinned map. The caller closes it.
func pinnedMap(path string) (*ebpf.Map, error) {
	fd, err := openPin(path)
	if err != nil {
		return nil, err
	}
	return ebpf.NewMapFromFD(fd)
}

// pinnedID returns the kernel's id of a pinned program or map.
func pinnedID(path string) (uint32, error) {
	fd, err := openPin(path)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	id, err := objectID(fd)
	if err != nil {
		return 0, fmt.Errorf("pin %s: %w", path, err)
	}
	return id, nil
}

// objectID returns the kernel's id of an open program or map.
func objectID(fd int) (uint32, error) {
	info := &struct{ kind, id uint32 }{} // the begin of struct bpf_prog_info and of struct bpf_map_info
	err := objectInfo(fd, info)
	return info.id, err
}

// objectInfo reads the kernel's information about an open object, as much as info has room for.
func objectInfo[T any](fd int, info *T) error {
	_, err := bpfCall(unix.BPF_OBJ_GET_INFO_BY_FD, &struct {
		fd, size uint32
		info     unsafe.Pointer
	}{uint32(fd), uint32(unsafe.Sizeof(*info)), unsafe.Pointer(info)})
	return err
}

// linkInfo is the beginning of struct bpf_link_info, in the host's byte order.
type linkInfo struct {
	kind, _, program, _ uint32
	target              [8]byte // of a cgroup its id, of XDP and TCX the index of the interface
}

func (i linkInfo) cgroup() uint64  { return binary.NativeEndian.Uint64(i.target[:]) }
func (i linkInfo) ifindex() uint32 { return binary.NativeEndian.Uint32(i.target[:]) }

// pinnedLink returns the kernel's information about a pinned link.
func pinnedLink(path string) (info linkInfo, err error) {
	fd, err := openPin(path)
	if err != nil {
		return info, err
	}
	defer unix.Close(fd)
	read := &linkInfo{} // on the heap: the kernel gets its address
	if err := objectInfo(fd, read); err != nil {
		return info, fmt.Errorf("pin %s: %w", path, err)
	}
	return *read, nil
}

// updateLink atomically replaces the program of an open link. Package ebpf would first read the type of the link, as it
// would in detachLink: for that the kernel takes the lock of all network configuration.
func updateLink(fd int, prog *ebpf.Program) error {
	_, err := bpfCall(unix.BPF_LINK_UPDATE, &struct{ link, program, flags, before uint32 }{
		link: uint32(fd), program: uint32(prog.FD())})
	runtime.KeepAlive(prog)
	return err
}

// detachLink detaches an open link from what it is attached to (Linux 5.9).
func detachLink(fd int) error {
	_, err := bpfCall(unix.BPF_LINK_DETACH, &struct{ link uint32 }{uint32(fd)})
	return err
}

// bpfCall is the system call bpf(2). It returns the new descriptor if there is one.
func bpfCall[T any](command int, attr *T) (fd int, err error) {
	n, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
