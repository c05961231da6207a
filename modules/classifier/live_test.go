// SPDX-License-Identifier: Apache-2.0

package classifier_test

import (
	"errors"
	"net"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// wire sends raw frames into an interface, from a separate namespace.
type wire struct {
	name string
	hook chain.Hook
	mode link.XDPAttachFlags
	open func(t *testing.T, lab *netlab.Lab, h *netlab.Host) (iface string, send func(frame []byte) error)
}

// TestRawInterfaces sends frames without an Ethernet header: over a veth, which treats them as Ethernet, and over an
// interface without a link header, as IEEE 802.15.4 interfaces appear to XDP and TC.
func TestRawInterfaces(t *testing.T) {
	sdktest.NeedRoot(t)
	for _, w := range []wire{
		{"veth, native XDP", chain.XDP, link.XDPDriverMode, overVeth},
		{"veth, TC", chain.TC, 0, overVeth},
		{"tun, generic XDP", chain.XDP, link.XDPGenericMode, overTun},
		{"tun, TC", chain.TC, 0, overTun},
	} {
		t.Run(w.name, func(t *testing.T) {
			lab, err := netlab.NewIn("clst")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { lab.Close() })
			border, err := lab.Host("border", netlab.HostOptions{})
			if err != nil {
				t.Fatal(err)
			}
			k := load(t, w.hook, dropping)
			k.use(0, "rpl", "dis", 10)
			iface, send := w.open(t, lab, border)
			w.attach(t, k, border, iface)
			var seq byte
			deliver := func(now uint64, messages int) {
				k.at(now)
				before := k.count(countMessages) + k.count(countDropped)
				for range messages {
					seq++
					if err := send(disFrame(7, seq)); err != nil {
						t.Fatal(err)
					}
				}
				k.until("all messages are counted", func() bool {
					return k.count(countMessages)+k.count(countDropped) >= before+uint64(messages)
				})
			}
			deliver(100*second, 20)
			deliver(101*second, 20)
			deliver(102*second, 10) // the first frame makes it suspicious
			if n := k.count(countDropped); n != 9 {
				t.Errorf("%d frames were dropped, not 9", n)
			}
		})
	}
}

func (w *wire) attach(t *testing.T, k *kernel, h *netlab.Host, iface string) {
	t.Helper()
	var l link.Link
	err := h.Do(func() error {
		at, err := net.InterfaceByName(iface)
		if err != nil {
			return err
		}
		if w.hook == chain.XDP {
			l, err = link.AttachXDP(link.XDPOptions{Interface: at.Index, Program: k.prog, Flags: w.mode})
		} else {
			l, err = link.AttachTCX(link.TCXOptions{Interface: at.Index, Program: k.prog, Attach: ebpf.AttachTCXIngress})
		}
		return err
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip(err) // TCX came with Linux 6.6
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// overVeth sends on the peer of the host's interface.
func overVeth(t *testing.T, lab *netlab.Lab, h *netlab.Host) (string, func([]byte) error) {
	t.Helper()
	var fd int
	if err := lab.Node().Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	to := &unix.SockaddrLinklayer{Ifindex: h.OuterIndex()}
	return h.Interface(), func(frame []byte) error { return unix.Sendto(fd, frame, 0, to) }
}

// overTun writes to a TUN device with packet information, which accepts any protocol.
func overTun(t *testing.T, _ *netlab.Lab, h *netlab.Host) (string, func([]byte) error) {
	t.Helper()
	const name = "wpan0"
	var tun *os.File
	if err := h.Do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		tun = os.NewFile(uintptr(fd), "tun")
		req, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		req.SetUint16(unix.IFF_TUN)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
			return err
		}
		return up(name)
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tun.Close() })
	return name, func(frame []byte) error {
		_, err := tun.Write(append([]byte{0, 0, 0x00, 0xf6}, frame...)) // flags, ETH_P_IEEE802154
		return err
	}
}

func up(name string) error {
	at, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(at)
}
