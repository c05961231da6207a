// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// deepAt is an offset in the payload after the first page of a frame.
const deepAt = 6000

const jumbos = `{"classes": [
	{"name": "deep", "match": {"protocol": "udp", "ports": [8080], "payload": [{"offset": 6000, "bytes": "4b455242"}]}, "action": "steal"},
	{"name": "all", "match": {"protocol": "udp", "ports": [8080]}}]}`

// Frames of all sizes up to jumbo, with and without VLAN tags, are delivered whole from a real interface: on XDP as
// multi-buffer frames, on TC as socket buffers.
func TestJumboAndVLAN(t *testing.T) {
	sdktest.NeedRoot(t)
	for _, w := range []struct {
		name string
		side chain.Side
	}{{"XDP", chain.OnXDP}, {"TC ingress", chain.OnTCIngress}, {"TC egress", chain.OnTCEgress}} {
		t.Run(w.name, func(t *testing.T) {
			lab, err := netlab.NewIn("icpj")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { lab.Close() })
			h, err := lab.Host("host", netlab.HostOptions{MTU: 9000})
			if err != nil {
				t.Fatal(err)
			}
			k := loadOn(t, w.side, chain.Ingress, jumbos)
			deep, all := k.open("deep"), k.open("all")
			send := k.attach(lab, h, w.side)
			for _, vlans := range []int{0, 1, 2} {
				for _, size := range []int{0, 1400, 3000, 5000, 8900} {
					for _, f := range []frame{datagram(8080, ""), packet("fd00::1", "fd00::2", udp, 40000, 8080, "")} {
						f.vlans, f.payload = vlans, bytes.Repeat([]byte{byte(size), byte(vlans)}, size/2)
						send(f.bytes())
						all.expect(f, w.side == chain.OnTCIngress)
						if size <= deepAt {
							continue
						}
						copy(f.payload[deepAt:], "KERB")
						send(f.bytes())
						deep.expect(f, w.side == chain.OnTCIngress)
					}
				}
			}
		})
	}
}

// attach attaches the program on the path of frames to a host, and returns a function that sends frames.
func (k *kernel) attach(lab *netlab.Lab, h *netlab.Host, side chain.Side) (send func([]byte)) {
	k.t.Helper()
	var l link.Link
	at := h.Namespace
	if side == chain.OnTCEgress {
		at = lab.Node()
	}
	err := at.Do(func() error {
		inner, err := net.InterfaceByName(h.Interface())
		switch {
		case side == chain.OnTCEgress:
			l, err = link.AttachTCX(link.TCXOptions{Interface: h.OuterIndex(), Program: k.prog, Attach: ebpf.AttachTCXEgress})
		case err != nil:
		case side == chain.OnTCIngress:
			l, err = link.AttachTCX(link.TCXOptions{Interface: inner.Index, Program: k.prog, Attach: ebpf.AttachTCXIngress})
		default:
			l, err = link.AttachXDP(link.XDPOptions{Interface: inner.Index, Program: k.prog, Flags: link.XDPDriverMode})
		}
		return err
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		k.t.Skip(err) // TCX: Linux 6.6
	}
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { l.Close() })
	var fd int
	if err := lab.Node().Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}); err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { unix.Close(fd) })
	return func(frame []byte) {
		k.t.Helper()
		// frames that are stolen on egress
		if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: h.OuterIndex()}); err != nil &&
			!errors.Is(err, unix.ENOBUFS) {
			k.t.Fatalf("%d bytes: %v", len(frame), err)
		}
	}
}

// expect waits for a frame. For TC ingress, the kernel removes the outer tag from the frame and passes it as metadata.
func (r *reader) expect(f frame, untagged bool) {
	r.t.Helper()
	want, tci := f.bytes(), uint16(0)
	if untagged && f.vlans > 0 {
		tci = binary.BigEndian.Uint16(want[14:])
		want = slices.Concat(want[:12], want[16:])
		f.vlans--
	}
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		rec, got := r.take()
		if rec == nil {
			continue
		}
		if !bytes.Equal(got, want) || int(rec.Len) != len(want) || uint16(rec.Flags>>16) != tci ||
			int(rec.Payload) != f.payloadAt() {
			r.t.Errorf("%d bytes with %d tags: %+v, %d bytes, want %d", len(f.payload), f.vlans, rec, len(got), len(want))
		}
		return
	}
	r.t.Fatalf("%d bytes with %d tags: nothing came", len(f.payload), f.vlans)
}
