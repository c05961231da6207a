// SPDX-License-Identifier: Apache-2.0

package oakestra

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// leavesChecksums reports whether packets of an interface can reach another node without the checksums that their
// sender has left to checksum offload, because there is no network card on the path.
func leavesChecksums(name string) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	if err != nil {
		return false
	}
	driver := unix.ByteSliceToString(info.Driver[:])
	return driver == "veth" || driver == "virtio_net"
}

// completeChecksums disables checksum and segmentation offload on an interface in a namespace, since NetManager
// forwards packets from a UDP socket unchanged.
func completeChecksums(ns netns.NsHandle, name string) (err error) {
	runtime.LockOSThread()
	own, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return err
	}
	defer own.Close()
	if err := netns.Set(ns); err != nil {
		runtime.UnlockOSThread()
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if back := netns.Set(own); back != nil {
		return errors.Join(err, back) // the thread stays locked, and ends with the goroutine
	}
	runtime.UnlockOSThread()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := struct{ command, data uint32 }{command: unix.ETHTOOL_STXCSUM}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // the kernel copies a whole struct ifreq
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL,
		uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("%s in the service: switch off checksum offload: %w", name, errno)
	}
	return nil
}
