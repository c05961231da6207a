// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/pkgs"
	"github.com/kerb-edge/kerb/internal/pkttest"
)

// foreignObject compiles programs that were not made for Kerb.
func foreignObject(t *testing.T) []byte {
	t.Helper()
	object := filepath.Join(t.TempDir(), "foreign.o")
	machine, err := exec.Command("uname", "-m").Output()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("clang-19", "-O2", "-g", "-target", "bpf", "-mcpu=v3", "-idirafter", "/usr/include/"+
		strings.TrimSpace(string(machine))+"-linux-gnu",
		"-c", "testdata/foreign.bpf.c", "-o", object).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return read(t, object)
}

// pushImage pushes an image as bpfman's specification wants it: one layer with one object, and labels.
func pushImage(t *testing.T, target string, content files, labels map[string]string) {
	t.Helper()
	layer, diffID, err := pack(content)
	if err != nil {
		t.Fatal(err)
	}
	config, err := configOf(nil, labels, diffID)
	if err != nil {
		t.Fatal(err)
	}
	l := newBlob(ocispec.MediaTypeImageLayerGzip, layer)
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: config.Descriptor,
		Layers: []ocispec.Descriptor{l.Descriptor}}
	m.SchemaVersion = 2
	root, err := jsonBlob(ocispec.MediaTypeImageManifest, m)
	if err != nil {
		t.Fatal(err)
	}
	to, err := Transport{}.writer(ref(t, target))
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range []blob{config, l, root} {
		if err := put(t.Context(), to, b); err != nil {
			t.Fatal(err)
		}
	}
	if err := to.Tag(t.Context(), root.Descriptor, ref(t, target).Tag); err != nil {
		t.Fatal(err)
	}
}

func programsLabel(t *testing.T, programs map[string]string) map[string]string {
	t.Helper()
	text, err := json.Marshal(programs)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{labelPrograms: string(text), labelMaps: `{"seen":"per_cpu_array"}`}
}

func TestImageOfOthers(t *testing.T) {
	host, n := startRegistry(t), newNode(t)
	signer, public := author(t, "acme")
	n.trusts(public)
	target := host + "/bytecode/go_xdp_pass:latest"
	pushImage(t, target, files{"foreign.o": foreignObject(t)},
		programsLabel(t, map[string]string{"pass": "xdp", "stats": "tc"}))
	if _, err := n.pull(target); !errors.Is(err, ErrUnsigned) {
		t.Fatalf("unsigned image: %v", err)
	}
	if _, err := Sign(t.Context(), ref(t, target), signer, "", Transport{}); err != nil {
		t.Fatal(err)
	}
	if p := n.mustPull(target); p.Name != "go-xdp-pass" || p.Version != "0.0.0" || p.SignedBy != "acme" {
		t.Errorf("pulled %+v", p)
	}
	p, err := n.Get(target)
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	// By port: what the programs return, and the resulting verdict of the chain.
	for side, want := range map[chain.Side]map[uint16]int32{
		chain.OnXDP:       {1000: 2, 1001: 1, 1002: 3, 1003: 1, 1004: 1},
		chain.OnTCIngress: {1000: -1, 1001: 2, 1002: -1, 1003: -1, 1004: 2},
	} {
		runForeign(t, p, side, want)
	}
}

// runForeign runs the programs in a chain that fails closed, so that actions without a verdict are drops.
func runForeign(t *testing.T, p *pkgs.Package, side chain.Side, want map[uint16]int32) {
	t.Helper()
	loaded, err := dataplane.Load(side, chain.Egress, dataplane.Module{Name: p.Name, ID: "test", FailClosed: true,
		Spec: func(h chain.Hook) (*ebpf.CollectionSpec, error) { return p.Spec(string(h)) }})
	if err != nil {
		t.Fatalf("%s: %v", side, err)
	}
	defer loaded.Close()
	for port, action := range want {
		got, err := loaded.Program.Run(&ebpf.RunOptions{Data: udpTo(t, port), DataOut: make([]byte, 512)})
		if err != nil {
			t.Fatal(err)
		}
		if int32(got) != action {
			t.Errorf("%s, port %d: action %d, not %d", side, port, int32(got), action)
		}
	}
	drops, err := loaded.Drops(p.Name)
	if err != nil {
		t.Fatal(err)
	}
	if sum(drops) == 0 {
		t.Errorf("%s: no drop was counted", side)
	}
}

// A program moves the packet, and the next module finds the headers at their new position.
func TestModuleBehindImage(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	foreign, err := pkgs.OpenForeign("foreign", "test", foreignObject(t), map[string]string{"pass": "xdp", "stats": "tc"})
	if err != nil {
		t.Fatal(err)
	}
	drop, err := pkgs.Open("../dataplane/testdata/drop")
	if err != nil {
		t.Fatal(err)
	}
	behind := pkttest.ModuleOf(drop)
	for side, actions := range map[chain.Side][2]int32{chain.OnXDP: {1, 2}, chain.OnTCIngress: {2, -1}} {
		for port, want := range map[uint16]int32{1005: actions[0], 1006: actions[1]} {
			behind.Settings.Constants = map[string]any{"port": 1005}
			loaded, err := dataplane.Load(side, chain.Egress, pkttest.ModuleOf(foreign), behind)
			if err != nil {
				t.Fatalf("%s: %v", side, err)
			}
			defer loaded.Close()
			got, err := loaded.Program.Run(&ebpf.RunOptions{Data: udpTo(t, port), DataOut: make([]byte, 512)})
			if err != nil || int32(got) != want {
				t.Errorf("%s, port %d: action %d, not %d (%v)", side, port, int32(got), want, err)
			}
		}
	}
}

func sum(all []uint64) (total uint64) {
	for _, n := range all {
		total += n
	}
	return total
}

func udpTo(t *testing.T, port uint16) []byte {
	t.Helper()
	eth := layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		EthernetType: layers.EthernetTypeIPv4}
	ip := layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{10, 0, 0, 1},
		DstIP: net.IP{10, 0, 0, 2}}
	udp := layers.UDP{SrcPort: 7, DstPort: layers.UDPPort(port)}
	if err := udp.SetNetworkLayerForChecksum(&ip); err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, &eth, &ip,
		&udp, gopacket.Payload("hello")); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestImagesThatAreNothingForKerb(t *testing.T) {
	host, n, object := startRegistry(t), newNode(t), foreignObject(t)
	for name, c := range map[string]struct {
		content files
		labels  map[string]string
		want    string
	}{
		"no-labels": {files{"a.o": object}, nil, "neither kerb.yaml nor the label"},
		"kprobe":    {files{"a.o": object}, programsLabel(t, map[string]string{"pass": "kprobe"}), "for xdp and tc only"},
		"two": {files{"a.o": object}, programsLabel(t, map[string]string{"pass": "xdp", "other": "xdp"}),
			"cannot determine which"},
		"absent":      {files{"a.o": object}, programsLabel(t, map[string]string{"nosuch": "xdp"}), "not in its object"},
		"wrong-type":  {files{"a.o": object}, programsLabel(t, map[string]string{"stats": "xdp"}), "is a program of type"},
		"two-objects": {files{"a.o": object, "b.o": object}, programsLabel(t, map[string]string{"pass": "xdp"}), "2 objects"},
		"no-elf":      {files{"a.o": []byte("x")}, programsLabel(t, map[string]string{"pass": "xdp"}), "not a whole ELF"},
		"bad-label":   {files{"a.o": object}, map[string]string{labelPrograms: "pass"}, "not a JSON object"},
	} {
		target := host + "/bytecode/" + name + ":1"
		pushImage(t, target, c.content, c.labels)
		_, err := n.Pull(t.Context(), ref(t, target), Trust{AllowUnsigned: true}, Transport{})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
