// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolValue and ifreqData are struct ethtool_value (linux/ethtool.h) and
// struct ifreq (linux/if.h) with its pointer member.
type ethtoolValue struct{ cmd, data uint32 }

type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// SetTxChecksum enables or disables TX checksum offload of an interface in the namespace of the calling thread.
func SetTxChecksum(name string, on bool) error {
	value := ethtoolValue{cmd: unix.ETHTOOL_STXCSUM}
	if on {
		value.data = 1
	}
	return ethtool(name, "tx checksum", unsafe.Pointer(&value))
}

// TxChecksum reports whether TX checksum offload is enabled on an interface in the namespace of the calling thread.
func TxChecksum(name string) (bool, error) {
	value := ethtoolValue{cmd: unix.ETHTOOL_GTXCSUM}
	err := ethtool(name, "tx checksum", unsafe.Pointer(&value))
	return value.data != 0, err
}

// SetTxQueues sets the number of TX queues of a veth in the namespace of the calling thread. Its peer accepts no native
// XDP program while it has fewer RX queues.
func SetTxQueues(name string, n uint32) error {
	// struct ethtool_channels: maximum, then current number; of rx, tx, other and combined channels each
	channels := struct{ cmd, maxRx, maxTx, maxOther, maxCombined, rx, tx, other, combined uint32 }{
		cmd: unix.ETHTOOL_SCHANNELS, rx: 1, tx: n}
	return ethtool(name, "queues", unsafe.Pointer(&channels))
}

func ethtool(name, what string, value unsafe.Pointer) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req := ifreqData{data: value}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	runtime.KeepAlive(value)
	if errno != 0 {
		return fmt.Errorf("%s of %s: %w", what, name, errno)
	}
	return nil
}
