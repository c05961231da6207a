// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/node"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
	"github.com/kerb-edge/kerb/kmod"
)

// loadKmod loads the kernel module on an emulated machine, for one test.
func loadKmod(t *testing.T) (loaded bool) {
	t.Helper()
	if os.Getenv("KERB_MATRIX") == "" {
		return false
	}
	if err := kmod.Load("../../kmod/kerb_intercept.ko"); errors.Is(err, os.ErrNotExist) {
		return false
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := kmod.Unload(); err != nil {
			t.Error(err)
		}
	})
	return true
}

// eBPF and the kernel module deliver the same packets in the same order, without loss.
func TestKmodAsEBPF(t *testing.T) {
	const packets = 5000
	if !loadKmod(t) {
		t.Skip("needs the kernel module in an emulated machine: make test-kmod")
	}
	lab, err := netlab.NewIn("kbks")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	host, err := lab.Host("sender", netlab.HostOptions{Routed: true, TxChecksumOff: true})
	if err != nil {
		t.Fatal(err)
	}
	rings := map[string]*kmod.Ring{"eBPF": openEBPF(t, lab, host), "kernel module": openModule(t, lab, host)}
	sent := sendVaried(t, lab, host, packets)
	for way, ring := range rings {
		for i, want := range sent {
			rec, frame, ok := await(ring)
			if !ok || rec.Seq != uint64(i) || rec.Lost != 0 {
				t.Fatalf("%s, packet %d: %+v, %v", way, i, rec, ok)
			}
			if int(rec.Len) != len(frame) || !bytes.Equal(frame[rec.Payload:], want) {
				t.Fatalf("%s, packet %d: %+v holds % x", way, i, rec, frame)
			}
		}
		if rec, _, ok := ring.Next(); ok {
			t.Errorf("%s: one packet more: %+v", way, rec)
		}
	}
}

func await(r *kmod.Ring) (rec kmod.Record, frame []byte, ok bool) {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if rec, frame, ok = r.Next(); ok {
			break
		}
	}
	return rec, frame, ok
}

// sendVaried sends UDP payloads of all sizes up to the MTU, from one CPU, and returns them.
func sendVaried(t *testing.T, lab *netlab.Lab, host *netlab.Host, n int) (all [][]byte) {
	t.Helper()
	var socket net.PacketConn
	if err := host.Do(func() (err error) { socket, err = net.ListenPacket("udp4", ":0"); return err }); err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(lab.Gateway4(), port))
	err := traffic.RunOnCPU(0, func() error {
		for i := range n {
			all = append(all, binary.BigEndian.AppendUint64(make([]byte, i*131%1464), uint64(i)))
			if _, err := socket.WriteTo(all[i], to); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

const testRing = 16 << 20

// openModule attaches the kernel module to the receiving interface.
func openModule(t *testing.T, lab *netlab.Lab, host *netlab.Host) *kmod.Ring {
	t.Helper()
	var f *os.File
	err := lab.Node().Do(func() (err error) {
		f, err = kmod.Attach(kmod.Rule{Ifindex: uint32(host.OuterIndex()), Ring: testRing, Action: kmod.Copy, Protocol: 17,
			FirstPort: port, LastPort: port})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // the mapping holds a reference
	return mapped(t, int(f.Fd()))
}

func mapped(t *testing.T, fd int) *kmod.Ring {
	t.Helper()
	ring, err := kmod.OpenRing(fd, testRing)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ring.Close() })
	return ring
}

// openEBPF runs the agent with the intercept module on the receiving interface, and opens its class as any program
// does.
func openEBPF(t *testing.T, lab *netlab.Lab, host *netlab.Host) *kmod.Ring {
	t.Helper()
	n, err := node.Start(lab.Node())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	m := node.Module("intercept", "intercept", "", map[string]any{"classes": []map[string]any{{
		"name": class, "match": map[string]any{"protocol": "udp", "ports": []any{port}}, "action": "copy", "ring": "16Mi",
	}}})
	m.Spec.Attach, m.Spec.Hook = v1.Attach{Interfaces: []string{host.Outer()}}, "xdp"
	if err := n.Apply(m); err != nil {
		t.Fatalf("%.600v", err) // an error may contain the verifier's log
	}
	door := &place{socket: n.ModuleSocket("intercept")}
	if err := door.awaitSocket(); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unixpacket", door.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write([]byte(`{"open": "` + class + `"}`)); err != nil {
		t.Fatal(err)
	}
	return mapped(t, firstDescriptor(t, conn.(*net.UnixConn)))
}

// firstDescriptor reads the reply, and returns the first passed descriptor, that of the ring.
func firstDescriptor(t *testing.T, conn *net.UnixConn) int {
	t.Helper()
	answer, control := make([]byte, 4096), make([]byte, 1024)
	n, nc, _, _, err := conn.ReadMsgUnix(answer, control)
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(answer[:n]) || nc == 0 {
		t.Fatalf("the module answers %s", answer[:n])
	}
	messages, err := unix.ParseSocketControlMessage(control[:nc])
	if err != nil {
		t.Fatal(err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	})
	return fds[0]
}
