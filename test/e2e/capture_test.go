// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	v1 "github.com/kerb-edge/kerb/api/v1alpha1"
)

// Wireshark shows dropped packets with place, module and reason, and passed ones.
func TestCaptures(t *testing.T) {
	n := newRunningNode(t)
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("needs tshark")
	}
	deny := map[string]any{"name": "no dns", "action": "deny",
		"direction": "ingress", "protocol": "udp", "dstPort": 53}
	kerb := map[string]any{"name": "kerb", "action": "pass",
		"match": map[string]any{"protocol": "udp", "ports": []any{54}}}
	n.apply(module("count", "counter", "*", nil),
		module("icpt", "intercept", "app=db", map[string]any{"classes": []any{kerb}}),
		module("fw", "firewall", "app=db", map[string]any{"rules": []any{deny},
			"defaultPolicy": map[string]any{"ingress": "allow", "egress": "allow"}}))
	n.settled(map[string]int{"count": 4, "fw": 2})
	stop := make(chan struct{})
	var sending errgroup.Group
	sending.Go(func() error { return n.sendDatagrams(stop, 53, 54) })
	defer func() {
		close(stop)
		if err := sending.Wait(); err != nil {
			t.Error(err)
		}
	}()

	file := filepath.Join(t.TempDir(), "dropped.pcapng")
	r := n.kerb("drops", "--follow", "--module", "fw", "--reason", "policy", "--host", n.db.Addr4().String()+"/30",
		"--count", "3", "-w", file)
	if r.code != 0 || r.stdout != "" || !strings.Contains(r.stderr, "3 packets written to "+file) {
		t.Fatalf("kerb drops: %+v", r)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the capture is %v, %v", info, err)
	}
	shown := func(file string) []string {
		t.Helper()
		out, err := exec.Command(tshark, "-r", file, "-T", "fields", "-E", "separator=|", "-e", "frame.interface_name",
			"-e", "frame.interface_description", "-e", "frame.packet_flags_direction", "-e", "frame.verdict.ebpf_tc",
			"-e", "ip.src", "-e", "ip.dst", "-e", "udp.dstport", "-e", "frame.comment").Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	ends := "|" + n.web.Addr4().String() + "|" + n.db.Addr4().String() + "|"
	into := n.db.Outer() + "|service db ingress at tc-egress|0x00000002|"
	sent := func(l string) bool { // at the service that sends it
		return strings.HasPrefix(l, n.web.Outer()+"|service web egress at tc-ingress|0x00000001|-1"+ends+"53|kerb: ")
	}
	lines := slices.DeleteFunc(shown(file), sent)
	for _, l := range lines {
		if !strings.HasPrefix(l, into+"2"+ends+"53|kerb: ") || !strings.Contains(l, `fw:drop (policy) rule="no dns" in `) {
			t.Errorf("tshark shows %q", l)
		}
	}
	if len(lines) != 3 {
		t.Errorf("%d packets, want 3: %q", len(lines), lines)
	}

	all := n.kerb("trace", "--protocol", "udp", "--port", "54", "--count", "8", "-w", "-")
	if all.code != 0 || strings.Contains(all.stderr, "written") {
		t.Fatalf("kerb trace -w -: %d, %s", all.code, all.stderr)
	}
	if err := os.WriteFile(file, []byte(all.stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	out := n.web.Outer() + "|service web egress at tc-ingress|0x00000001|"
	for _, where := range []string{into, out} {
		if lines := shown(file); !slices.ContainsFunc(lines, func(l string) bool {
			return strings.HasPrefix(l, where+"-1"+ends+"54|kerb: ") && strings.Contains(l, "count:next in ") &&
				(where == out || strings.Contains(l, "icpt:next class=kerb in "))
		}) {
			t.Errorf("nothing passes %s: %q", where, lines)
		}
	}

	checkNumbers(t, tshark, file)
	n.tracesSlow()
	n.tracesExpressions()
	n.expect("drops", []string{"--count", "1", "--times"}, ":53 len ", `fw:drop (policy) rule="no dns" in `)
	n.expect("drops", []string{"--follow", "--count", "1", "-o", "json"}, `"note":"rule","value":16,"name":"no dns"`)
	n.keepsDrops(shown, into+"2"+ends+"53|kerb: "+`fw:drop (policy) rule="no dns"`)
	n.refused(n.kerb("trace", "-w", filepath.Join(t.TempDir(), "none", "file")), 1, "no such file or directory")
	n.refused(n.kerb("trace", "-w", file, "-o", "json"), 2, "use one of them")
	n.refused(n.kerb("trace", "-w", file, "--messages"), 2, "messages on sockets do not have")
	n.refused(n.kerb("trace", "--verdict", "reject"), 2, "verdict", "redirect")
	n.refused(n.kerb("trace", "--host", "10.0.0.0/33"), 2, "neither an IP address nor a prefix")
	n.refused(n.kerb("drops", "--service", "dbb"), 3, "dbb")
}

// tracesSlow traces packets whose modules took longer than usual.
func (n *node) tracesSlow() {
	n.T.Helper()
	traced := func(flags ...string) (packets []v1.TracedPacket) {
		n.T.Helper()
		r := n.kerb("trace", append([]string{"--protocol", "udp", "-o", "json"}, flags...)...)
		if r.code != 0 {
			n.T.Fatalf("kerb trace: %+v", r)
		}
		for lines := json.NewDecoder(strings.NewReader(r.stdout)); lines.More(); {
			var p v1.TracedPacket
			if err := lines.Decode(&p); err != nil {
				n.T.Fatal(err)
			}
			packets = append(packets, p)
		}
		return packets
	}
	took := func(p v1.TracedPacket) (ns uint64) {
		for _, s := range p.Steps {
			ns += s.Nanoseconds
		}
		return ns
	}
	var times []uint64
	for _, p := range traced("--count", "200") {
		times = append(times, took(p))
	}
	slices.Sort(times)
	limit := times[len(times)*9/10]
	slow := traced("--count", "20", "--slower-than", fmt.Sprintf("%dns", limit))
	if len(slow) == 0 {
		n.T.Errorf("no packet is slower than %d ns, which one in ten was", limit)
	}
	before := map[string]bool{} // a packet that waits long between two chains is shown twice
	for _, p := range slow {
		if took(p) <= limit && !before[p.ID] {
			n.T.Errorf("slower than %d ns: %+v", limit, p)
		}
		before[p.ID] = true
	}
	if none := traced("--slower-than", "1m", "--for", "1s"); len(none) != 0 {
		n.T.Errorf("slower than a minute: %+v", none)
	}
	n.refused(n.kerb("trace", "--slower-than", "50"), 2, "slowerThan", "50us")
}

// checkNumbers checks that a packet has the same number at both of its chains, and each packet a different one.
func checkNumbers(t *testing.T, tshark, file string) {
	t.Helper()
	out, err := exec.Command(tshark, "-r", file, "-T", "fields", "-e", "frame.packet_id").Output()
	if err != nil {
		t.Fatal(err)
	}
	numbers := map[string]int{}
	for _, n := range strings.Fields(string(out)) {
		numbers[n]++
	}
	for n, times := range numbers {
		if times > 2 {
			t.Errorf("%d frames have the number %s", times, n)
		}
	}
	if pairs := slices.Collect(maps.Values(numbers)); !slices.Contains(pairs, 2) {
		t.Errorf("no packet is in the file at both of its chains: %v", numbers)
	}
}

// tracesExpressions traces datagrams to db, to two ports, that tcpdump expressions select.
func (n *node) tracesExpressions() {
	n.T.Helper()
	for expression, port := range map[string]string{"udp and not dst port 53": ":54 ", "udp[2:2] = 53": ":53 "} {
		lines := strings.Split(strings.TrimSpace(n.must("trace", "--service", "db", expression, "--count", "20")), "\n")
		if len(lines) != 20 || slices.ContainsFunc(lines, func(l string) bool { return !strings.Contains(l, port) }) {
			n.T.Errorf("kerb trace %q:\n%s", expression, strings.Join(lines, "\n"))
		}
	}
	n.expect("trace", []string{"udp", "port", "54", "--count", "1"}, ":54 len ") // in several words
	n.refused(n.kerb("trace", "port of call"), 2, `expression "port of call": `, "unknown port")
	n.refused(n.kerb("trace", "inbound"), 2, "program", "inbound and outbound")
}

// keepsDrops checks the packets that are kept without a trace, which are all those that fw drops at db.
func (n *node) keepsDrops(shown func(file string) []string, want string) {
	n.T.Helper()
	n.expect("drops", []string{"--module", "fw", "--service", "db", "--port", "53"}, "db ingress", "udp ", ":53 len 46",
		`fw:drop (policy) rule="no dns"`)
	n.expect("drops", []string{"--module", "count"}, "no dropped packets")
	n.expect("drops", []string{"--port", "54"}, "no dropped packets")
	n.refused(n.kerb("drops", "--module", "fww"), 3, "fww")
	file := filepath.Join(n.T.TempDir(), "kept.pcapng")
	r := n.kerb("drops", "--count", "2", "-w", file)
	if r.code != 0 || !strings.Contains(r.stderr, "2 packets written to") {
		n.T.Fatalf("kerb drops -w: %+v", r)
	}
	for _, l := range shown(file) {
		if l != want {
			n.T.Errorf("tshark shows %q, want %q", l, want)
		}
	}
}

// sendDropped sends datagrams to ports of db until the test ends. A firewall there drops those to 53.
func (n *node) sendDropped(ports ...int) {
	n.T.Helper()
	deny := map[string]any{"action": "deny", "direction": "ingress", "protocol": "udp", "dstPort": 53}
	n.apply(module("fw", "firewall", "app=db", map[string]any{"rules": []any{deny},
		"defaultPolicy": map[string]any{"ingress": "allow", "egress": "allow"}}))
	n.settled(map[string]int{"fw": 2})
	stop := make(chan struct{})
	var sending errgroup.Group
	sending.Go(func() error { return n.sendDatagrams(stop, ports...) })
	n.T.Cleanup(func() {
		close(stop)
		if err := sending.Wait(); err != nil {
			n.T.Error(err)
		}
	})
}

// sendDatagrams sends some datagrams to each port of db from web until stop is closed.
func (n *node) sendDatagrams(stop <-chan struct{}, ports ...int) error {
	return n.web.Do(func() error {
		c, err := net.ListenPacket("udp4", netip.AddrPortFrom(n.web.Addr4(), 0).String())
		if err != nil {
			return err
		}
		defer c.Close()
		for {
			for _, port := range ports {
				to := netip.AddrPortFrom(n.db.Addr4(), uint16(port))
				_, _ = c.WriteTo([]byte("kerb"), net.UDPAddrFromAddrPort(to)) // refused, if nothing listens
			}
			select {
			case <-stop:
				return nil
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
}
