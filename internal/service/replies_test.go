// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/api/v1alpha1"
)

const xdpPass = 2 // XDP_PASS

// sendBack is bpf_redirect to the interface that a frame came from, as chains reply on veths.
func sendBack(ifindex int) asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R1, int32(ifindex)), asm.Mov.Imm(asm.R2, 0), asm.FnRedirect.Call()}
}

// runXDP has a driver run code on all frames.
func runXDP(t *testing.T, ifindex int, code ...asm.Instruction) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: append(code, asm.Return())})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	l, err := link.AttachXDP(link.XDPOptions{Interface: ifindex, Program: prog, Flags: link.XDPDriverMode})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// isReflected sends a frame out of an interface of the current namespace and reports whether it comes back. If it
// should, that may take long on a busy machine.
func isReflected(t *testing.T, name string, want bool) bool {
	t.Helper()
	const experimental = 0xb588 // 0x88b5, in network byte order
	at, err := net.InterfaceByName(name)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, experimental)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	wait := unix.NsecToTimeval(int64(300 * time.Millisecond))
	if want {
		wait.Sec = 30
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: experimental, Ifindex: at.Index}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait)); err != nil {
		t.Fatal(err)
	}
	frame := append(append(append([]byte{}, at.HardwareAddr...), at.HardwareAddr...), 0x88, 0xb5)
	if err := unix.Sendto(fd, append(frame, make([]byte, 46)...), 0,
		&unix.SockaddrLinklayer{Ifindex: at.Index}); err != nil {
		t.Fatal(err)
	}
	n, _, err := unix.Recvfrom(fd, make([]byte, 128), 0)
	for errors.Is(err, unix.EINTR) { // with a limit of time the kernel does not continue by itself
		n, _, err = unix.Recvfrom(fd, make([]byte, 128), 0)
	}
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	return n > 0
}

// A veth drops frames that native XDP sends back, unless its peer has NAPI queues: EnablePeerGRO creates them.
func TestEnablePeerGRO(t *testing.T) {
	if version, err := features.LinuxVersionCode(); err != nil || version < groQueues {
		t.Skipf("needs Linux 5.13 (%v)", err)
	}
	lab := newLab(t)
	h := newHost(t, lab, "web")
	var outer Link
	within(t, lab.Node(), func() error {
		state, err := resolveOne(v1alpha1.ServiceSpec{Netns: h.Path()})
		outer = state.Links[0]
		runXDP(t, outer.Ifindex, sendBack(outer.Ifindex)...)
		return err
	})
	reflected := func(want bool, when string) {
		within(t, h.Namespace, func() error {
			if got := isReflected(t, h.Interface(), want); got != want {
				t.Errorf("%s: the frame came back: %v", when, got)
			}
			return nil
		})
	}
	reflected(false, "before")
	for range 2 {
		within(t, lab.Node(), func() error { return EnablePeerGRO(outer) })
		reflected(true, "after")
	}
}

// Both ends in the node; and what needs nothing is left alone.
func TestEnablePeerGROWithinTheNode(t *testing.T) {
	if version, err := features.LinuxVersionCode(); err != nil || version < groQueues {
		t.Skipf("needs Linux 5.13 (%v)", err)
	}
	lab := newLab(t)
	within(t, lab.Node(), func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "ksvnear"
		pair := netlink.NewVeth(attrs)
		pair.PeerName = "ksvfar"
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		for _, name := range []string{"ksvnear", "ksvfar"} {
			l, err := netlink.LinkByName(name)
			if err := errors.Join(err, netlink.LinkSetUp(l)); err != nil {
				return err
			}
		}
		near, err := resolveOne(v1alpha1.ServiceSpec{Interface: "ksvnear"})
		if err != nil {
			return err
		}
		runXDP(t, near.Links[0].Ifindex, sendBack(near.Links[0].Ifindex)...)
		if err := EnablePeerGRO(near.Links[0]); err != nil {
			t.Error(err)
		}
		if !isReflected(t, "ksvfar", true) {
			t.Error("the frame did not come back")
		}
		if err := EnablePeerGRO(Link{Name: "lo", Ifindex: 1}); err != nil {
			t.Errorf("loopback: %v", err)
		}
		if err := EnablePeerGRO(Link{Name: "gone", Ifindex: 4711}); err == nil {
			t.Error("an interface that is not there was taken")
		}
		return nil
	})
}

// An XDP program at the other end does it too: then nothing is changed.
func TestEnablePeerGROWithPeerXDP(t *testing.T) {
	lab := newLab(t)
	h := newHost(t, lab, "web")
	within(t, h.Namespace, func() error {
		at, err := net.InterfaceByName(h.Interface())
		if err == nil {
			runXDP(t, at.Index, asm.Mov.Imm(asm.R0, xdpPass))
		}
		return err
	})
	within(t, lab.Node(), func() error {
		c, err := openConn()
		if err != nil {
			return err
		}
		defer c.close()
		if l, err := c.link(h.OuterIndex()); err != nil || l.xdp {
			t.Errorf("an XDP program at the node's end: %v, %v", l.xdp, err)
		}
		return EnablePeerGRO(Link{Name: h.Outer(), Ifindex: h.OuterIndex()})
	})
	within(t, h.Namespace, func() error {
		c, err := openConn()
		if err != nil {
			return err
		}
		defer c.close()
		at, err := net.InterfaceByName(h.Interface())
		if err != nil {
			return err
		}
		if l, err := c.link(at.Index); err != nil || !l.xdp {
			t.Errorf("no XDP program inside: %v, %v", l.xdp, err)
		}
		return nil
	})
}
