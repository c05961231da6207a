// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
)

// Slow and dropped packets are shown with the verdict and time of each module, although no trace ran when they arrived.
func TestLastPackets(t *testing.T) {
	n := newNode(t)
	n.Configure("slowPackets: 2us")
	n.start()
	deny := map[string]any{"action": "deny", "direction": "ingress", "protocol": "udp", "dstPort": 53}
	n.apply(n.both(), module("spin", testPackage(t, "spin"), "app=db", nil), // 4,000 steps, which take microseconds
		module("fw", "firewall", "app=db", map[string]any{"rules": []any{deny},
			"defaultPolicy": map[string]any{"ingress": "allow", "egress": "allow"}}))
	n.settled(map[string]int{"spin": 2, "fw": 2})
	n.sends(53, 1)
	slow := func(flags ...string) (packets []v1.TracedPacket) {
		t.Helper()
		r := n.kerb("trace", append([]string{"--last", "-o", "json"}, flags...)...)
		if r.code != 0 || len(r.stdout) > 0 == strings.Contains(r.stderr, "no packets were kept") {
			t.Fatalf("%+v", r)
		}
		for lines := json.NewDecoder(strings.NewReader(r.stdout)); lines.More(); {
			var p v1.TracedPacket
			if err := lines.Decode(&p); err != nil {
				t.Fatal(err)
			}
			packets = append(packets, p)
		}
		return packets
	}
	n.Eventually("a packet is measured, and slow", func() bool {
		n.sends(54, 3000)
		return len(slow("--service", "db", "--port", "54", "--slower-than", "3us")) > 0
	})
	for _, p := range slow("--service", "db", "--port", "54") {
		took := map[string]uint64{}
		for _, s := range p.Steps {
			took[s.Module] = s.Nanoseconds
		}
		if p.Nanoseconds < took["spin"]+took["fw"] || took["spin"] < 2000 || len(took) != 2 || p.Protocol != "udp" ||
			p.Service != "db" || len(p.Frame) != 0 {
			t.Errorf("%+v", p)
		}
	}
	if all := slow("--port", "53"); len(all) != 1 || all[0].Steps[0].Reason != "policy" {
		t.Errorf("dropped: %+v", all)
	}
	if none := slow("--slower-than", "1h"); len(none) != 0 {
		t.Errorf("slower than an hour: %+v", none)
	}
	n.expect("trace", []string{"--last", "--times"}, "spin:next", "fw:drop (policy)", "slow: ", " ns in the chain")
	n.refused(n.kerb("trace", "--last", "udp port 53"), 2, "program", "packets that come")
	n.refused(n.kerb("trace", "--last", "--for", "5s"), 2, "--for")
	n.refused(n.kerb("trace", "--last", "--module", "fww"), 3, "fww")
	n.lastCapture()
}

// lastCapture checks that tshark shows the kept packets.
func (n *node) lastCapture() {
	n.T.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		n.T.Log("without tshark the capture is not examined")
		return
	}
	file := filepath.Join(n.T.TempDir(), "last.pcapng")
	r := n.kerb("trace", "--last", "--port", "54", "--count", "1", "-w", file)
	if r.code != 0 {
		n.T.Fatalf("%+v", r)
	}
	out, err := exec.Command(tshark, "-r", file, "-T", "fields", "-e", "udp.dstport", "-e", "frame.comment").Output()
	if err != nil || !strings.HasPrefix(string(out), "54\tkerb: ") || !strings.Contains(string(out), "slow: ") {
		info, _ := os.Stat(file)
		n.T.Errorf("tshark: %v, of %v:\n%s", err, info, out)
	}
}

// sends sends datagrams from web to a port of db.
func (n *node) sends(port uint16, packets int) { n.floods(n.web, n.db, port, packets) }

func (n *node) floods(from, at *netlab.Host, port uint16, packets int) {
	n.T.Helper()
	if err := from.Do(func() error {
		c, err := net.ListenPacket("udp4", netip.AddrPortFrom(from.Addr4(), 0).String())
		if err != nil {
			return err
		}
		defer c.Close()
		to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(at.Addr4(), port))
		for range packets {
			_, _ = c.WriteTo([]byte("kerb"), to) // refused, if nothing listens
		}
		return nil
	}); err != nil {
		n.T.Fatal(err)
	}
}
