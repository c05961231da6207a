// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf/features"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

// groQueues is Linux 5.13: since then GRO gives a veth the queues that XDP frames arrive by.
const groQueues = 5<<16 | 13<<8

// EnablePeerGRO makes sure that what native XDP on a link sends back by redirect arrives. The other end of a veth takes
// such frames only if it has queues for them: with an XDP program of its own, or since Linux 5.13 with GRO
// (veth_xdp_xmit). It switches GRO on there, and leaves it on. Links of other kinds need nothing. CAP_SYS_ADMIN is
// needed to enter the namespace of the other end, CAP_NET_ADMIN to change it.
func EnablePeerGRO(link Link) error {
	c, err := openConn()
	if err != nil {
		return err
	}
	defer c.close()
	outer, err := c.link(link.Ifindex)
	if err != nil || outer.Kind != "veth" {
		return err
	}
	if outer.peerNSID == noNSID {
		return receiveAt(outer)
	}
	ns, err := openNamespaceOf(v1alpha1.ServiceSpec{}, link)
	if err != nil {
		return err
	}
	defer unix.Close(ns)
	return enter(ns, func() error { return receiveAt(outer) })
}

// receiveAt does so from within the namespace that the other end is in.
func receiveAt(outer rawLink) error {
	c, err := openConn()
	if err != nil {
		return err
	}
	defer c.close()
	peer, err := c.link(outer.peerIndex)
	if err != nil {
		return fmt.Errorf("the veth peer of %s: %w", outer.Name, err)
	}
	if peer.peerIndex != outer.Ifindex || peer.Kind != "veth" {
		return fmt.Errorf("the veth peer of %s has just been replaced", outer.Name)
	}
	if peer.xdp {
		return nil
	}
	if version, err := features.LinuxVersionCode(); err != nil || version < groQueues {
		return errors.Join(err, fmt.Errorf("before Linux 5.13 the veth peer of %s needs its own XDP program", outer.Name))
	}
	if err := setGRO(peer.Name); err != nil {
		return fmt.Errorf("the veth peer of %s: enable GRO on %s: %w", outer.Name, peer.Name, err)
	}
	return nil
}

// link looks one link of the namespace up.
func (c *conn) link(ifindex int) (rawLink, error) {
	head := nl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(ifindex)
	msgs, err := c.execute(unix.RTM_GETLINK, 0, unix.RTM_NEWLINK, head)
	if err != nil {
		return rawLink{}, err
	}
	if len(msgs) == 0 {
		return rawLink{}, &net.OpError{Op: "get", Net: "link", Err: unix.ENODEV}
	}
	return parseLink(msgs[0]), nil
}

// ethtoolValue is struct ethtool_value (linux/ethtool.h), ifreqData struct ifreq (linux/if.h) with its pointer member.
type ethtoolValue struct{ cmd, data uint32 }

type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// setGRO switches generic receive offload on. Where it is on already, nothing changes.
func setGRO(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	value := ethtoolValue{cmd: unix.ETHTOOL_SGRO, data: 1}
	req := ifreqData{data: unsafe.Pointer(&value)}
	copy(req.name[:unix.IFNAMSIZ-1], name)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	runtime.KeepAlive(&value)
	if errno != 0 {
		return errno
	}
	return nil
}
