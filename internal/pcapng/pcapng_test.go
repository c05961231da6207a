// SPDX-License-Identifier: Apache-2.0

package pcapng

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// capture has an interface of each link type, and packets whose lengths have all remainders of four.
func capture(t *testing.T) ([]byte, []Packet) {
	t.Helper()
	var out bytes.Buffer
	w, err := NewWriter(&out, "kerb test")
	if err != nil {
		t.Fatal(err)
	}
	for i, kind := range []LinkType{Ethernet, Raw, IEEE802154} {
		n, err := w.Interface(Interface{Name: "veth" + strings.Repeat("x", i), Description: "service web", LinkType: kind,
			SnapLen: 256})
		if err != nil || n != i {
			t.Fatal(n, err)
		}
	}
	began := time.Unix(1_700_000_000, 123_456_789)
	var all []Packet
	for i := range 8 {
		data := append(bytes.Repeat([]byte{0x02}, 12), 0x88, 0xb5) // an EtherType for experiments (RFC 7042)
		p := Packet{Interface: 0, Time: began.Add(time.Duration(i)), Data: append(data, make([]byte, i)...), Length: 1000 + i,
			Outbound: i%2 == 1, Verdict: Verdict{TC, 2}, Comment: "fw: drop, policy" + strings.Repeat("é", i)}
		if i == 7 {
			p.Verdict, p.Comment = Verdict{XDP, 1}, ""
		}
		if err := w.Packet(p); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	return out.Bytes(), all
}

// Another implementation reads what was written.
func TestRoundTrip(t *testing.T) {
	data, want := capture(t)
	r, err := pcapgo.NewNgReader(bytes.NewReader(data), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	var got []Packet
	for range want {
		frame, info, opts, err := r.ReadPacketDataWithOptions()
		if err != nil {
			t.Fatal(err)
		}
		p := Packet{Interface: info.InterfaceIndex, Time: info.Timestamp.Local(), Data: frame, Length: info.Length,
			Outbound: opts.Flags.Direction == pcapgo.NgEpbFlagDirectionOutbound,
			Comment:  strings.Join(opts.Comments, "; ")}
		for _, v := range opts.Verdicts {
			p.Verdict = Verdict{Hook(v.Type), uint64(v.Data[0])}
		}
		got = append(got, p)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
	i, err := r.Interface(0)
	if err != nil || i.Name != "veth" || i.Description != "service web" || i.LinkType != layers.LinkTypeEthernet ||
		i.SnapLength != 256 || r.NInterfaces() != 3 || r.SectionInfo().Application != "kerb test" {
		t.Errorf("%+v, %v", i, err)
	}
}

// Wireshark's own reader shows comments, directions and verdicts.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("needs tshark")
	}
	data, want := capture(t)
	file := filepath.Join(t.TempDir(), "capture.pcapng")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	var wanted strings.Builder
	for _, p := range want {
		direction, tc, xdp := "0x00000001", "2", ""
		if p.Outbound {
			direction = "0x00000002"
		}
		if p.Verdict.Hook == XDP {
			tc, xdp = "", "1"
		}
		fmt.Fprintf(&wanted, "veth\t%s\t%s\t%s\t%s\t%d\t%d.%09d\n", p.Comment, tc, xdp, direction, p.Length,
			p.Time.Unix(), p.Time.Nanosecond())
	}
	out, err := exec.Command(tshark, "-r", file, "-T", "fields", "-e", "frame.interface_name", "-e", "frame.comment",
		"-e", "frame.verdict.ebpf_tc", "-e", "frame.verdict.ebpf_xdp", "-e", "frame.packet_flags_direction",
		"-e", "frame.len", "-e", "frame.time_epoch").Output()
	if diff := cmp.Diff(wanted.String(), string(out)); err != nil || diff != "" {
		t.Errorf("%v; want (-), got (+):\n%s", err, diff)
	}
}
