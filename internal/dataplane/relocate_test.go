// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/kerb-edge/kerb/bpf"
	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/parsed"
	"github.com/kerb-edge/kerb/sdk"
)

// A module whose struct kerb_pkt has another layout finds every field, those that it writes included.
func TestFieldsAreRelocated(t *testing.T) {
	for _, s := range sides {
		l := load(t, s.side, s.dir, testModule(t, "moved", "moved", nil))
		if ret, _ := run(t, l.Program, udpPacket(t, 9, nil)); ret != s.drop {
			t.Errorf("%s: port 9: action %d, want %d", s.side, ret, s.drop)
		}
		if ret, _ := run(t, l.Program, udpPacket(t, 10, nil)); ret != s.pass {
			t.Errorf("%s: port 10: action %d, want %d", s.side, ret, s.pass)
		}
		if drops, err := l.Drops("moved"); err != nil || drops[33] != 1 {
			t.Errorf("%s: drops by reason: %v (%v), want one of reason 33", s.side, drops, err)
		}
	}
}

// objectModule is a module of a compiled object, for TC.
func objectModule(t *testing.T, name string, files fs.FS, path string) Module {
	t.Helper()
	needsRoot(t)
	raw, err := fs.ReadFile(files, path)
	if err != nil {
		t.Fatal(err)
	}
	return Module{Name: name, ID: chain.ShortHash(raw), Spec: func(h chain.Hook) (*ebpf.CollectionSpec, error) {
		if h != chain.TC {
			return nil, nil
		}
		return ebpf.LoadCollectionSpecFromReader(bytes.NewReader(raw))
	}}
}

// withoutRelocations is modules/counter as commit aa76e1d compiled it, before accesses had relocations.
func withoutRelocations(t *testing.T) Module {
	return objectModule(t, "counter", testModules, "testdata/contract1/counter.tc.elf")
}

// published is a module as commit 420ca1c5 compiled it: the last one before a change of struct kerb_pkt (82fecae1: the
// reason has a note above it). counter is of modules, drop of testdata.
func published(t *testing.T, name string) Module {
	return objectModule(t, name, testModules, "testdata/relocated/"+name+".tc.elf")
}

type place struct{ Key, Packets, Bytes uint64 }

// udpCounts are what modules/counter has in its places of UDP over IPv4.
func udpCounts(t *testing.T, maps sdk.Maps) (found []place) {
	t.Helper()
	var perCPU []place
	for i := range maps["places"].MaxEntries() {
		if err := maps["places"].Lookup(i, &perCPU); err != nil {
			t.Fatal(err)
		}
		for _, p := range perCPU {
			if family, proto := byte(p.Key>>40), byte(p.Key>>48); p.Packets > 0 && family == 4 && proto == 17 {
				found = append(found, p)
			}
		}
	}
	return found
}

// Packages of earlier builds are linked, next to each other and to one of another layout.
func TestEarlierPackages(t *testing.T) {
	for _, m := range []Module{withoutRelocations(t), published(t, "counter")} {
		l := load(t, chain.OnTCIngress, chain.Egress, testModule(t, "moved", "moved", nil), m)
		packet := udpPacket(t, 10, make([]byte, 58))
		if ret, _ := run(t, l.Program, packet); ret != tcNext {
			t.Errorf("action %d, want %d", ret, tcNext)
		}
		if got := udpCounts(t, l.Maps["counter"]); len(got) != 1 || got[0].Packets != 1 ||
			got[0].Bytes != uint64(len(packet)) {
			t.Errorf("counted %+v, want one packet of %d bytes", got, len(packet))
		}
	}
}

// laterLayout has chains linked as a later Kerb may have them: the fields of struct kerb_pkt are in another order, and
// there is one more.
func laterLayout(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("clang-19"); err != nil {
		t.Skip("needs clang-19")
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../bpf/include")); err != nil {
		t.Fatal(err)
	}
	types := filepath.Join(dir, "kerb", "types.h")
	text, err := os.ReadFile(types)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, begins := strings.Cut(string(text), "struct kerb_pkt {\n")
	_, tail, ends := strings.Cut(rest, "} KERB_RELOCATED;")
	if !begins || !ends {
		t.Fatal("no struct kerb_pkt")
	}
	const later = `void *ctx; __u64 later; __u64 l4; void *data_end; __u64 l3; void *data;
__u32 to_flags; __u32 reason; __u32 l4_len; __u8 family, proto, flags, outcome; __u16 vlan, eth_type;
__u32 to_ifindex; __u32 len; __u32 ifindex;`
	if err := os.WriteFile(types, []byte(head+"struct kerb_pkt {\n"+later+"} KERB_RELOCATED;"+tail), 0o600); err != nil {
		t.Fatal(err)
	}
	object := filepath.Join(dir, "chain.o")
	arch := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	cmd := exec.Command("clang-19", "-g", "-O2", "-target", "bpf", "-mcpu=v3", "-DKERB_HOOK_TC", "-I"+dir,
		"-idirafter", fmt.Sprintf("/usr/include/%s-linux-gnu", arch), "-c", "../../bpf/chain.bpf.c", "-o", object)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	now := chainObjects["tc"]
	t.Cleanup(func() { chainObjects["tc"] = now })
	chainObjects["tc"] = parsed.New(func() (*ebpf.CollectionSpec, error) { return ebpf.LoadCollectionSpec(object) })
}

// A package that an earlier build made works in a Kerb that has moved fields and added one.
func TestPublishedPackageInALaterLayout(t *testing.T) {
	needsRoot(t)
	laterLayout(t)
	l := load(t, chain.OnTCIngress, chain.Egress, published(t, "counter"), published(t, "drop"))
	for port, want := range map[uint16]int32{9: tcShot, 10: tcNext} {
		if ret, _ := run(t, l.Program, udpPacket(t, port, make([]byte, 58))); ret != want {
			t.Errorf("port %d: action %d, want %d", port, ret, want)
		}
	}
	if drops, err := l.Drops("drop"); err != nil || drops[1] != 1 {
		t.Errorf("drops by reason: %v (%v), want one by policy", drops, err)
	}
	packets, size := uint64(0), uint64(len(udpPacket(t, 9, make([]byte, 58))))
	for _, p := range udpCounts(t, l.Maps["counter"]) {
		if packets += p.Packets; p.Bytes != p.Packets*size {
			t.Errorf("%d packets of %d bytes are %d bytes", p.Packets, size, p.Bytes)
		}
	}
	if packets != 2 {
		t.Errorf("counted %d packets, want 2", packets)
	}
}

// Under traffic, packages of earlier builds replace the one of this build and are replaced by it: each packet arrives,
// and one of them counts it in the map that they share.
func TestEarlierPackagesAreSwapped(t *testing.T) {
	w := newWorld(t, Options{})
	p := chain.Point{Ifindex: w.a.OuterIndex(), Side: chain.OnTCIngress}
	builds := []Module{objectModule(t, "counter", bpf.Objects(), "modules/counter/counter.tc.o"), withoutRelocations(t),
		published(t, "counter")}
	var specs []chain.Spec
	for _, m := range builds {
		specs = append(specs, w.deploy(t, p, chain.Egress, m))
	}
	if !w.passes(t, 53) {
		t.Fatal("no connection")
	}
	counted := func() (n uint64) {
		maps, err := w.Maps("counter", builds[0].ID)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range udpCounts(t, maps) {
			n += p.Packets
		}
		for _, m := range maps {
			m.Close()
		}
		return n
	}
	before := counted()
	stop, sent := make(chan struct{}), make(chan uint64)
	go func() { sent <- w.stream(t, 54, stop) }()
	for i := range 60 {
		if err := w.Attach(p, specs[i%len(specs)]); err != nil {
			t.Error(err)
		}
		time.Sleep(5 * time.Millisecond) // some packets by each
	}
	close(stop)
	n := <-sent
	t.Logf("%d packets", n)
	if got := counted() - before; got != n || n < 60 {
		t.Errorf("%d packets arrived, %d were counted", n, got)
	}
}

// stream sends one UDP packet after the other from host a to b until stop, and returns how many there were. Each has
// to arrive.
func (w *world) stream(t *testing.T, port int, stop <-chan struct{}) (packets uint64) {
	var server, client net.PacketConn
	err := errors.Join(w.b.Do(func() (err error) {
		server, err = net.ListenPacket("udp4", fmt.Sprintf("%s:%d", w.b.Addr4(), port))
		return err
	}), w.a.Do(func() (err error) {
		client, err = net.ListenPacket("udp4", w.a.Addr4().String()+":0")
		return err
	}))
	if err != nil {
		t.Error(err)
		return 0
	}
	defer server.Close()
	defer client.Close()
	for buf := make([]byte, 16); ; packets++ {
		select {
		case <-stop:
			return packets
		default:
		}
		if _, err := client.WriteTo([]byte("kerb"), server.LocalAddr()); err != nil {
			t.Error(err)
		}
		server.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, _, err := server.ReadFrom(buf); err != nil {
			t.Errorf("packet %d is lost: %v", packets, err)
			return packets
		}
	}
}
