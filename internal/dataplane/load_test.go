// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"bytes"
	"embed"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/sdk"
)

//go:embed testdata
var testModules embed.FS

// testModule is a module of testdata. The identity covers its constants.
func testModule(t testing.TB, object, name string, constants map[string]any) Module {
	t.Helper()
	needsRoot(t)
	return Module{
		Name: name,
		ID:   chain.ShortHash([]byte(object), []byte(keyOf(constants))),
		Spec: func(h chain.Hook) (*ebpf.CollectionSpec, error) {
			raw, err := testModules.ReadFile("testdata/" + object + "/" + object + "." + string(h) + ".o")
			if err != nil {
				return nil, err
			}
			return ebpf.LoadCollectionSpecFromReader(bytes.NewReader(raw))
		},
		Settings: sdk.Settings{Constants: constants},
	}
}

func udpPacket(t testing.TB, dport uint16, payload []byte) []byte {
	t.Helper()
	eth := layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		EthernetType: layers.EthernetTypeIPv4}
	ip := layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{10, 0, 0, 1},
		DstIP: net.IP{10, 0, 0, 2}}
	udp := layers.UDP{SrcPort: 1000, DstPort: layers.UDPPort(dport)}
	if err := udp.SetNetworkLayerForChecksum(&ip); err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, &eth, &ip, &udp, gopacket.Payload(payload)); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func run(t testing.TB, p *ebpf.Program, packet []byte) (int32, []byte) {
	t.Helper()
	out := make([]byte, len(packet)+256)
	opts := &ebpf.RunOptions{Data: packet, DataOut: out}
	ret, err := p.Run(opts)
	if err != nil {
		t.Fatal(err)
	}
	return int32(ret), opts.DataOut
}

func load(t testing.TB, side chain.Side, dir chain.Direction, mods ...Module) *Loaded {
	t.Helper()
	needsRoot(t)
	l, err := Load(side, dir, mods...)
	var rej *RejectedError
	if errors.As(err, &rej) {
		t.Fatalf("%v\n%s", err, rej.Log)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func counted(t testing.TB, m *ebpf.Map) (packets, bytes uint64) {
	t.Helper()
	var perCPU []struct{ Packets, Bytes uint64 }
	if err := m.Lookup(uint32(0), &perCPU); err != nil {
		t.Fatal(err)
	}
	for _, c := range perCPU {
		packets += c.Packets
		bytes += c.Bytes
	}
	return
}

var sides = []struct {
	side       chain.Side
	dir        chain.Direction
	pass, drop int32
}{
	{chain.OnXDP, chain.Egress, xdpPass, xdpDrop},
	{chain.OnTCIngress, chain.Egress, tcNext, tcShot},
	{chain.OnTCEgress, chain.Ingress, tcNext, tcShot},
}

func TestChainOrderAndVerdicts(t *testing.T) {
	for _, s := range sides {
		t.Run(string(s.side), func(t *testing.T) {
			l := load(t, s.side, s.dir,
				testModule(t, "pass", "before", nil),
				testModule(t, "drop", "dropper", map[string]any{"port": 53}),
				testModule(t, "pass", "after", nil))
			if ret, _ := run(t, l.Program, udpPacket(t, 53, []byte("x"))); ret != s.drop {
				t.Errorf("port 53: action %d, want %d", ret, s.drop)
			}
			if ret, _ := run(t, l.Program, udpPacket(t, 54, []byte("x"))); ret != s.pass {
				t.Errorf("port 54: action %d, want %d", ret, s.pass)
			}
			before, _ := counted(t, l.Maps["before"]["totals"])
			after, _ := counted(t, l.Maps["after"]["totals"])
			if before != 2 || after != 1 {
				t.Errorf("before the dropper %d packets, after it %d; want 2 and 1", before, after)
			}
			drops, err := l.Drops("dropper")
			if err != nil || drops[1] != 1 {
				t.Errorf("drops by policy: %v (%v), want 1", drops, err)
			}
		})
	}
}

func TestVerdictPolicy(t *testing.T) {
	for _, s := range sides {
		for _, closed := range []bool{false, true} {
			m := testModule(t, "verdict", "liar", map[string]any{"verdict": 77})
			m.FailClosed = closed
			l := load(t, s.side, s.dir, m, testModule(t, "pass", "after", nil))
			ret, _ := run(t, l.Program, udpPacket(t, 1, nil))
			want := s.pass
			if closed {
				want = s.drop
			}
			if ret != want {
				t.Errorf("%s, fail closed %t: action %d, want %d", s.side, closed, ret, want)
			}
			if drops, _ := l.Drops("liar"); drops[11] != 1 {
				t.Errorf("%s: bad verdicts counted %d, want 1", s.side, drops[11])
			}
		}
	}
}

func TestReplyAndRedirect(t *testing.T) {
	const xdpTX, xdpRedirect, tcRedirect = 3, 4, 7
	for _, s := range sides {
		for verdict, want := range map[int]map[bool]int32{2: {true: xdpTX, false: tcRedirect},
			3: {true: xdpRedirect, false: tcRedirect}} {
			l := load(t, s.side, s.dir, testModule(t, "verdict", "v", map[string]any{"verdict": verdict, "ifindex": 1}))
			if ret, _ := run(t, l.Program, udpPacket(t, 1, nil)); ret != want[s.side == chain.OnXDP] {
				t.Errorf("%s verdict %d: action %d, want %d", s.side, verdict, ret, want[s.side == chain.OnXDP])
			}
		}
	}
}

func TestEmptyChainPasses(t *testing.T) {
	for _, s := range sides {
		l := load(t, s.side, s.dir)
		if ret, _ := run(t, l.Program, udpPacket(t, 1, nil)); ret != s.pass {
			t.Errorf("%s: action %d, want %d", s.side, ret, s.pass)
		}
	}
}

func TestStampRewritesPayload(t *testing.T) {
	l := load(t, chain.OnTCIngress, chain.Egress, testModule(t, "stamp", "a", map[string]any{"generation": 5}),
		testModule(t, "stamp", "b", map[string]any{"generation": 6}))
	_, out := run(t, l.Program, udpPacket(t, 7007, make([]byte, 16)))
	if stamps, gen := binary.LittleEndian.Uint32(out[50:]), binary.LittleEndian.Uint32(out[54:]); stamps != 2 || gen != 6 {
		t.Errorf("stamps %d generation %d, want 2 and 6", stamps, gen)
	}
}

// A chain that is more than the verifier follows is split and still counts every packet in every module.
func TestSplitChain(t *testing.T) {
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("millions of verified instructions take minutes in an emulated machine")
	}
	for _, s := range sides[:2] {
		l := load(t, s.side, s.dir, testModule(t, "pass", "first", nil), testModule(t, "huge", "h1", nil),
			testModule(t, "huge", "h2", nil),
			testModule(t, "huge", "h3", nil), testModule(t, "pass", "last", nil))
		if l.Parts < 2 {
			t.Errorf("%s: %d parts, want more than one", s.side, l.Parts)
		}
		if ret, _ := run(t, l.Program, udpPacket(t, 1, nil)); ret != s.pass {
			t.Errorf("%s: action %d, want %d", s.side, ret, s.pass)
		}
		first, _ := counted(t, l.Maps["first"]["totals"])
		last, _ := counted(t, l.Maps["last"]["totals"])
		if first != 1 || last != 1 {
			t.Errorf("%s: first module saw %d, last %d; want 1 and 1", s.side, first, last)
		}
	}
}

func TestConstants(t *testing.T) {
	for _, c := range []map[string]any{{"nosuch": 1}, {"port": 65536}, {"port": 1.5}, {"port": "x"}} {
		if l, err := Load(chain.OnTCIngress, chain.Egress, testModule(t, "drop", "d", c)); err == nil {
			l.Close()
			t.Errorf("constants %v were accepted", c)
		}
	}
}

func keyOf(constants map[string]any) string {
	var b bytes.Buffer
	for _, k := range sortedKeys(constants) {
		b.WriteString(k)
		b.WriteString(stringOf(constants[k]))
	}
	return b.String()
}

// A loop without a bound is the commonest mistake. The kernel answers EFAULT when the log of the steps before it does
// not fit; the complaint must reach the author all the same, in a log of bounded size.
func TestUnboundedLoopIsExplained(t *testing.T) {
	_, err := Load(chain.OnTCIngress, chain.Egress, testModule(t, "loop", "loop", nil))
	var rej *RejectedError
	if !errors.As(err, &rej) {
		t.Fatalf("got %v", err)
	}
	if !strings.Contains(rej.Plain, "a loop without a bound") || !strings.Contains(rej.Plain, "bpf_loop()") {
		t.Errorf("plain: %s", rej.Plain)
	}
	if len(rej.Log) > 64<<10 {
		t.Errorf("the log has %d bytes", len(rej.Log))
	}
}

func TestLogIsBounded(t *testing.T) {
	log := "first" + strings.Repeat("x", 5*maxLog) + "complaint"
	got := boundLog(log)
	if len(got) > maxLog+100 || !strings.HasPrefix(got, "first") || !strings.HasSuffix(got, "complaint") {
		t.Errorf("%d bytes", len(got))
	}
}
