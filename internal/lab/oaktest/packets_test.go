// SPDX-License-Identifier: Apache-2.0

package oaktest

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/kerb-edge/kerb/internal/lab/traffic"
)

// recorded has the tables of two workers: app.ns.server.test on w1, app.ns.client.test on w2.
type recorded map[string]entry

var (
	serverEntry = entry{namespaces: [2]netip.Addr{netip.MustParseAddr("10.18.0.2"), netip.MustParseAddr("fc00::2")}}
	clientEntry = entry{namespaces: [2]netip.Addr{netip.MustParseAddr("10.18.0.66"), netip.MustParseAddr("fc00::102")}}
)

var recordedTables = recorded{"10.30.0.0": serverEntry, "10.30.0.2": serverEntry, "fdff:2000::": serverEntry,
	"10.30.0.3": clientEntry, "fdff::1": clientEntry}

func (r recorded) find(a netip.Addr) []entry { return []entry{r[a.String()]} }

func (r recorded) own(a netip.Addr) (netip.Addr, bool) {
	name := map[string]string{"10.18.0.2": "10.30.0.2", "10.18.0.66": "10.30.0.3", "fc00::2": "fdff::",
		"fc00::102": "fdff::1"}[a.String()]
	return netip.MustParseAddr(name), true
}

// ends are the addresses of a packet before the sending worker has translated it.
var ends = map[string]*[2][2]string{ // by worker: IPv4, IPv6
	"w1": {{"10.18.0.2", "10.30.0.3"}, {"fc00::2", "fdff::1"}},
	"w2": {{"10.18.0.66", "10.30.0.0"}, {"fc00::102", "fdff:2000::"}},
}

// TestPackets compares each packet of the recorded tunnels with the double's translation of the packet that the real
// NetManager had received, including fragments, and then delivers it.
func TestPackets(t *testing.T) {
	files, err := filepath.Glob("testdata/packets/*.jsonl")
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			caches := map[string]*proxyCache{"w1": newProxyCache(), "w2": newProxyCache()}
			ends["w2"][0][1] = "10.30.0.0"
			if filepath.Base(file) == "07-query-instance-ip.jsonl" {
				ends["w2"][0][1] = "10.30.0.2"
			}
			lines := 0
			for s := bufio.NewScanner(bytes.NewReader(data)); s.Scan(); lines++ {
				var l struct{ From, Raw string }
				if err := json.Unmarshal(s.Bytes(), &l); err != nil {
					t.Fatal(err)
				}
				replayPacket(t, caches, l.From, l.Raw)
			}
			if lines == 0 {
				t.Error("no packets")
			}
		})
	}
}

func replayPacket(t *testing.T, caches map[string]*proxyCache, from, text string) {
	t.Helper()
	want, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	p, ok := traffic.ParsePacket(want)
	if !ok {
		t.Fatalf("%s: not understood", text)
	}
	family := 0
	if p.Dst.Is6() {
		family = 1
	}
	before := ends[from][family]
	src, dst := netip.MustParseAddr(before[0]), netip.MustParseAddr(before[1])
	raw := bytes.Clone(want)
	copy(raw[p.At:], src.AsSlice())
	copy(raw[p.At+src.BitLen()/8:], dst.AsSlice())
	forgetChecksums(raw, p)
	sent, _ := traffic.ParsePacket(raw)
	got, _, ok := caches[from].outgoing(sent, recordedTables, func(int) int { return 0 })
	if !ok || !bytes.Equal(got, want) {
		t.Fatalf("from %s:\n%x, recorded\n%x", from, got, want)
	}
	to := map[string]string{"w1": "w2", "w2": "w1"}[from]
	arrived, _ := traffic.ParsePacket(caches[to].incoming(p))
	asked := netip.MustParseAddr(ends[to][family][1])
	further := p.Dst.Is4() && (want[6]&0x1f != 0 || want[7] != 0)
	switch {
	case arrived.Dst != p.Dst || !bytes.Equal(arrived.Between(arrived.Src, arrived.Dst), arrived.Raw):
		t.Errorf("%x arrives at %s as %x", want, to, arrived.Raw)
	case from == "w1" && !further && arrived.Src != asked:
		t.Errorf("the answer %x arrives from %s, not from %s", want, arrived.Src, asked)
	case further && arrived.Src != p.Src:
		t.Errorf("the further fragment %x arrives from %s: its first bytes are no ports of a connection", want, arrived.Src)
	}
}

// forgetChecksums overwrites the fields that the translation has to write.
func forgetChecksums(raw []byte, p traffic.Packet) {
	if p.Dst.Is4() {
		copy(raw[10:], "xx")
	}
	if p.UDP {
		copy(raw[p.L4+4:], "xxxx") // the length, too: a later fragment has data there
	} else {
		copy(raw[p.L4+16:], "xx")
	}
}
