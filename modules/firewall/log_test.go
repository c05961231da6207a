// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf/ringbuf"

	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/pkttest"
	"github.com/kerb-edge/kerb/sdk"
)

// reported reads the reports of the data plane since the last call.
func (k *kernel) reported() (out []logEvent) {
	k.t.Helper()
	if k.reports == nil {
		ring, err := ringbuf.NewReader(k.maps[mapReports])
		if err != nil {
			k.t.Fatal(err)
		}
		k.t.Cleanup(func() { ring.Close() })
		ring.SetDeadline(time.Unix(1, 0)) // pending reports
		k.reports = ring
	}
	for {
		record, err := k.reports.Read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return out
		}
		var e logEvent
		if n, decodeErr := binary.Decode(record.RawSample, binary.NativeEndian, &e); err != nil || decodeErr != nil ||
			n != len(record.RawSample) {
			k.t.Fatalf("%v, %v: %d of %d bytes", err, decodeErr, n, len(record.RawSample))
		}
		out = append(out, e)
	}
}

// reportTexts returns the reports as text.
func (k *kernel) reportTexts() (out []string) {
	k.t.Helper()
	g := k.open(k.live(1))
	for _, e := range k.reported() {
		l := g.describe(&e, sdk.Attachment{Service: "web", Interface: "veth1"})
		text := fmt.Sprintf("%s: %s", l.Rule, l.Verdict)
		if l.Reason != "" {
			text += " " + l.Reason
		}
		text += fmt.Sprintf(" %s %s %s %s > %s", l.Service, l.Direction, l.Protocol, l.Source, l.Destination)
		if l.TCPFlags != "" {
			text += " " + l.TCPFlags
		}
		if l.ICMPType != nil {
			text += fmt.Sprintf(" type %d code %d", *l.ICMPType, *l.ICMPCode)
		}
		out = append(out, fmt.Sprintf("%s len %d suppressed %d", text, l.Length, l.Suppressed))
	}
	return out
}

func (k *kernel) wantReports(want ...string) {
	k.t.Helper()
	if got := k.reportTexts(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		k.t.Errorf("reported:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Rules with log report matching packets with the verdict, once per connection. Others report nothing.
func TestLog(t *testing.T) {
	k := loadFirewall(t, `{"rules": [
		{"name": "web", "action": "allow", "direction": "ingress", "protocol": "tcp", "dstPort": 80, "log": true},
		{"action": "deny", "direction": "ingress", "protocol": "udp", "log": true},
		{"name": "ping", "action": "allow", "direction": "ingress", "protocol": "icmpv6", "icmpType": 128, "log": true},
		{"name": "once", "action": "allow", "direction": "ingress", "protocol": 47, "limit": {"rate": "1/h", "burst": 1}, "log": true},
		{"name": "quiet", "action": "deny", "direction": "ingress", "log": false}]}`)
	f := newTCPFlow(svc4, 80, far4, 1000)
	if !k.establish(f, 1) {
		t.Fatal("no handshake")
	}
	k.steps(step{"data", f.in(tcpACK, 10), true, true}, step{"answer", f.out(tcpACK, 10), false, true},
		step{"denied", frame{Packet: udp(far6, 5, svc6, 53)}, true, false},
		step{"echo", frame{Packet: icmp(far6, svc6, 128, 0)}, true, true},
		step{"a tunnel", frame{Packet: Packet{Src: addr(far4), Dst: addr(svc4), Proto: 47}}, true, true},
		step{"another", frame{Packet: Packet{Src: addr(svc4), Dst: addr("192.0.2.77"), Proto: 47}}, false, true},
		step{"over the limit", frame{Packet: Packet{Src: addr("192.0.2.78"), Dst: addr(svc4), Proto: 47}}, true, false},
		step{"quiet", newTCPFlow(svc4, 22, far4, 1).in(tcpSYN, 0), true, false})
	k.wantReports(
		"web: pass web ingress tcp "+far4+":1000 > "+svc4+":80 S len 54 suppressed 0",
		"#1: drop policy web ingress udp ["+far6+"]:5 > ["+svc6+"]:53 len 62 suppressed 0",
		"ping: pass web ingress icmpv6 "+far6+" > "+svc6+" type 128 code 0 len 62 suppressed 0",
		"once: pass web ingress 47 "+far4+" > "+svc4+" len 34 suppressed 0",
		"once: drop rate web ingress 47 192.0.2.78 > "+svc4+" len 34 suppressed 0",
	)
}

// A connection that previous rules allowed is reported when it ends, not when it continues.
func TestLogOfChangedRules(t *testing.T) {
	notEmulated(t)
	k := loadFirewall(t, `{"rules": [{"name": "web", "action": "allow", "direction": "ingress", "protocol": "tcp"}]}`)
	f, g := newTCPFlow(svc4, 80, far4, 1), newTCPFlow(svc4, 80, far4, 2)
	if !k.establish(f, 1) || !k.establish(g, 1) {
		t.Fatal("no handshake")
	}
	before := k.loaded.Program
	k.refill(`{"rules": [{"name": "web", "action": "allow", "direction": "ingress", "protocol": "tcp", "log": true}]}`)
	k.steps(step{"continues", f.in(tcpACK, 1), true, true})
	k.refill(`{"rules": [{"name": "web", "action": "deny", "direction": "ingress", "protocol": "tcp", "log": true}]}`)
	k.steps(step{"an answer", g.out(tcpACK, 1), false, false}, step{"ends", f.in(tcpACK, 1), true, false})
	k.wantReports("web: drop policy web ingress tcp " + far4 + ":1 > " + svc4 + ":80 . len 55 suppressed 0")
	if k.loaded.Program != before {
		t.Error("a program was loaded")
	}
}

// In audit mode the reported verdict is that of mode enforce; rejections are answered in mode enforce only.
func TestLogVerdicts(t *testing.T) {
	notEmulated(t)
	for mode, want := range map[string]string{modeEnforce: "reject", modeAudit: "would drop"} {
		k := loadFirewall(t, `{"mode": "`+mode+`", "rules": [{"name": "no", "action": "reject", "log": true}]}`)
		k.run(packetOf(t, pkttest.Fields{TCP: &pkttest.TCP{Ports: pkttest.Ports{Src: 7, Dst: 80}, Flags: "S"}}, true), true)
		k.wantReports("no: " + want + " policy web ingress tcp " + far4 + ":7 > " + svc4 + ":80 S len 60 suppressed 0")
	}
}

// A flood is reported up to the limit of its rule on its interface, and counted. It does not suppress reports of other
// rules and interfaces.
func TestLogOfFlood(t *testing.T) {
	notEmulated(t)
	k := loadFirewall(t, `{"state": {"enabled": false}, "rules": [
		{"name": "flooded", "action": "deny", "protocol": "udp", "log": {"rate": "1/h", "burst": 3}},
		{"name": "other", "action": "deny", "protocol": "tcp", "log": true}]}`)
	lab, err := netlab.NewIn("fwlog")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lab.Close() })
	hosts, err := lab.Hosts(2, netlab.HostOptions{})
	if err != nil {
		t.Fatal(err)
	}
	flood := frame{Packet: udp(far4, 1, svc4, 2)}
	flood.Ingress = true
	err = lab.Node().Do(func() error {
		for range 1000 {
			k.passAt(hosts[0].OuterIndex(), flood)
		}
		k.passAt(hosts[1].OuterIndex(), flood)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	k.steps(step{"of another rule", newTCPFlow(svc4, 80, far4, 1).in(tcpSYN, 0), true, false})
	var got []string
	for _, e := range k.reported() {
		first := e.Ifindex == uint32(hosts[0].OuterIndex())
		got = append(got, fmt.Sprint(k.rules[e.Slot-slotRules].Name, " ", first))
	}
	if want := "[flooded true flooded true flooded true flooded false other false]"; fmt.Sprint(got) != want {
		t.Errorf("reported %v, want %s", got, want)
	}
	report, err := k.open(k.live(1)).listRules()
	if err != nil {
		t.Fatal(err)
	}
	if r := report.Rules[0]; r.Suppressed == nil || *r.Suppressed != 997 || r.Limited != nil {
		t.Errorf("%+v", r)
	}
}

// Reports without room in the ring are suppressed, and the next report has their number.
func TestLogWithoutReader(t *testing.T) {
	notEmulated(t)
	k := loadFirewall(t, `{"state": {"enabled": false}, "rules": [
		{"name": "all", "action": "allow", "log": {"rate": "1/h", "burst": 10000}}]}`)
	for range 2000 {
		k.pass(syn(1, true), true)
	}
	first := len(k.reported())
	k.pass(syn(2, false), true)
	last := k.reported()
	if first < 500 || first > 1000 || len(last) != 1 || last[0].Suppressed != uint64(2000-first) || last[0].Family != 6 {
		t.Errorf("%d of 2000 reported, then %+v", first, last)
	}
}

// Clients get the last packets of each interface, then new ones; a flood does not hide other interfaces.
func TestLogRoute(t *testing.T) {
	g := &running{Firewall: compileConfig(t, `{"rules": [{"action": "deny", "log": true}]}`)}
	begin := time.Now()
	add := func(ifindex uint32, n int) {
		g.log.add(ifindex, Logged{Time: begin.Add(time.Duration(n)), Length: uint32(n), Interface: fmt.Sprint(ifindex)})
	}
	add(1, 0)
	for n := range 1000 {
		add(2, n+1)
	}
	for i := range uint32(journalInterfaces) { // 2 has been quiet longest, but 1
		add(100+i, 2000+int(i))
	}
	add(1, 3000)
	if len(g.log.last) != journalInterfaces || g.log.last[1] == nil || g.log.last[2] != nil {
		t.Errorf("%d interfaces", len(g.log.last))
	}
	g.log.last[2] = nil
	for n := range 1000 {
		add(2, 4000+n)
	}
	server := httptest.NewServer(g.Handler())
	defer server.Close()
	answer, err := server.Client().Get(server.URL + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	next := func() (l Logged) {
		if !lines.Scan() || json.Unmarshal(lines.Bytes(), &l) != nil {
			t.Fatalf("%q, %v", lines.Text(), lines.Err())
		}
		return l
	}
	var before []Logged
	for range journalInterfaces - 1 + journalLength {
		before = append(before, next())
	}
	if l := before[len(before)-1]; l.Length != 4999 {
		t.Errorf("last of before: %+v", l)
	}
	add(7, 6000)
	if l := next(); l.Interface != "7" || l.Length != 6000 {
		t.Errorf("to come: %+v", l)
	}
	g.log.stream.End()
	if lines.Scan() {
		t.Errorf("behind the end: %q", lines.Text())
	}
}

// Without logging rules, the route returns at once.
func TestLogRouteWithoutLog(t *testing.T) {
	g := &running{Firewall: compileConfig(t, `{"rules": [{"action": "deny"}]}`)}
	w := httptest.NewRecorder()
	g.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/log", nil))
	if w.Code != 404 || !strings.Contains(w.Body.String(), "set log: true") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// The client of the route receives packets of a real service, with the service's name.
func TestLogOfService(t *testing.T) {
	notEmulated(t)
	b := newBridged(t)
	k := loadFirewall(t, `{"antiSpoof": false, "rules": [{"name": "no", "action": "deny", "direction": "egress",
		"protocol": "udp", "dstPort": 9999, "log": true}]}`)
	b.filter(k)
	g := k.open(b.live(k))
	ctx, end := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { g.Run(ctx) })
	defer work.Wait()
	defer end()
	c := g.log.stream.Open()
	defer c.Close()
	err := b.tenant.Do(func() error {
		to, err := net.Dial("udp", net.JoinHostPort(b.neighbour.Addr4().String(), "9999"))
		if err == nil {
			defer to.Close()
			_, err = to.Write(make([]byte, 30))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case l := <-c.Values:
		if age := time.Since(l.Time); age < 0 || age > time.Minute {
			t.Errorf("reported %v ago", age)
		}
		if l.Rule != "no" || l.Verdict != "drop" || l.Service != "tenant" || l.Interface != b.tenant.Outer() ||
			l.Direction != "egress" || l.Length != 14+20+8+30 || l.Destination != b.neighbour.Addr4().String()+":9999" {
			t.Errorf("%+v", l)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("nothing is reported")
	}
}

func TestLogErrors(t *testing.T) {
	for log, want := range map[string]string{
		`"yes"`:                        `rules[0].log: rule "web": "yes" is neither true, false nor {rate: 10/s, burst: 5}`,
		`{"rate": "1/s", "prefix": 1}`: "is neither true, false nor",
		`{"rate": "10/d"}`:             `rules[0].log.rate: rule "web": "10/d" is not a rate`,
		`{"rate": "1/s", "burst": 0}`:  `rules[0].log.burst: rule "web": 0 is not between`,
	} {
		_, err := Control().Compile([]byte(`{"rules": [{"name": "web", "action": "deny", "log": ` + log + `}]}`))
		var field *sdk.ConfigError
		if !errors.As(err, &field) || !strings.Contains(field.Field+": "+field.Reason, want) {
			t.Errorf("%s: %v, want %s", log, err, want)
		}
	}
}
