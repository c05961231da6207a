// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pinnedID returns the kernel's id of a pinned program. Each change asks for those of all chains, and package ebpf also
// reads the types of each program that it opens, which takes longer than all else that a change observes.
func pinnedID(path string) (uint32, error) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return 0, err
	}
	fd, err := bpfCall(unix.BPF_OBJ_GET, &struct {
		pathname unsafe.Pointer
		fd       uint32
		flags    uint32
	}{pathname: unsafe.Pointer(name)})
	if err != nil {
		return 0, fmt.Errorf("open pinned program %s: %w", path, err)
	}
	defer unix.Close(fd)
	info := &struct{ kind, id uint32 }{} // the begin of struct bpf_prog_info
	_, err = bpfCall(unix.BPF_OBJ_GET_INFO_BY_FD, &struct {
		fd, size uint32
		info     unsafe.Pointer
	}{uint32(fd), uint32(unsafe.Sizeof(*info)), unsafe.Pointer(info)})
	if err != nil {
		return 0, fmt.Errorf("pinned program %s: %w", path, err)
	}
	return info.id, nil
}

// bpfCall is the system call bpf(2). It returns the new descriptor if there is one.
func bpfCall[T any](command int, attr *T) (fd int, err error) {
	n, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
