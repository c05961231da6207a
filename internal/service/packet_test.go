// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// openOn opens a packet socket as seen from a node.
func openOn(t *testing.T, node *netlab.Namespace, spec v1alpha1.ServiceSpec) (fd int, link Link) {
	t.Helper()
	within(t, node, func() error {
		state, err := resolveOne(spec)
		if err != nil {
			return err
		}
		link = state.Links[0]
		f, err := OpenPacket(spec, link)
		if err != nil {
			return err
		}
		t.Cleanup(func() { f.Close() })
		fd = int(f.Fd())
		return nil
	})
	return fd, link
}

// Frames go out of the service, however it is known, and nothing comes in, whatever is done to the socket.
func TestOpenPacket(t *testing.T) {
	lab := newLab(t)
	h, other := newHost(t, lab, "web"), newHost(t, lab, "other")
	cmd := h.Command(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	waitForNamespace(t, cmd.Process.Pid, h.Path())
	for name, spec := range map[string]v1alpha1.ServiceSpec{
		"netns":     {Netns: h.Path()},
		"pid":       {PID: cmd.Process.Pid},
		"interface": {Interface: h.Outer()},
	} {
		fd, link := openOn(t, lab.Node(), spec)
		frame := append(append(append([]byte{}, other.MAC()...), h.MAC()...), make([]byte, 46)...)
		if err := unix.Sendto(fd, frame, 0, nil); err != nil {
			t.Errorf("%s: send: %v", name, err)
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: take the filter: %v", name, err)
		}
		const all = 0x0300 // ETH_P_ALL in network byte order
		if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.PeerIndex}); err != nil {
			t.Fatal(err)
		}
		within(t, h.Namespace, func() error { // what it sends itself would be the first to be seen
			c, err := net.Dial("udp4", netip.AddrPortFrom(other.Addr4(), 9).String())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte("x"))
			return err
		})
		if n, _, err := unix.Recvfrom(fd, make([]byte, 2048), unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("%s: received %d bytes, %v", name, n, err)
		}
	}
}

func TestOpenPacketOfWhatIsGone(t *testing.T) {
	lab := newLab(t)
	h := newHost(t, lab, "web")
	spec := v1alpha1.ServiceSpec{Interface: h.Outer()}
	_, link := openOn(t, lab.Node(), spec)
	link.PeerMAC = append([]byte{}, link.MAC...)
	within(t, lab.Node(), func() error {
		if _, err := OpenPacket(spec, link); err == nil {
			t.Error("the interface inside is another one, and was taken")
		}
		if ended := OrphanedNamespaces([]uint32{uint32(link.Ifindex)}); len(ended) != 0 {
			t.Errorf("a namespace that is in use has ended: %v", ended)
		}
		return nil
	})
	if err := h.Remove(); err != nil {
		t.Fatal(err)
	}
	within(t, lab.Node(), func() error {
		if _, err := OpenPacket(spec, link); err == nil {
			t.Error("opened inside a service that is gone")
		}
		return nil
	})
}
