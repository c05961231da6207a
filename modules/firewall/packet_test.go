// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/internal/lab/wait"
	"github.com/kerb-edge/kerb/sdk"
)

// Drop reasons of <kerb/types.h>.
const (
	dropMalformed = 2
	dropFragment  = 3
	dropExtension = 4
	dropState     = 5
	dropTableFull = 6
)

type step struct {
	what    string
	frame   frame
	ingress bool
	pass    bool
}

func (k *kernel) steps(steps ...step) {
	k.t.Helper()
	for _, s := range steps {
		if got := k.pass(s.frame.bytes(), s.ingress); got != s.pass {
			k.t.Errorf("%s: passes %t, want %t", s.what, got, s.pass)
		}
	}
}

const (
	svc4, far4 = "10.0.0.2", "192.0.2.7"
	svc6, far6 = "2001:db8::2", "2001:db8:1::7"
)

func TestRepliesPassUnderDefaultDeny(t *testing.T) {
	for _, a := range [][2]string{{svc4, far4}, {svc6, far6}} {
		k := loadFirewall(t, `{}`)
		f, other := newTCPFlow(a[0], 5000, a[1], 80), newTCPFlow(a[0], 5001, a[1], 80)
		k.steps(
			step{"uninvited", newTCPFlow(a[0], 5000, a[1], 80).in(tcpSYN|tcpACK, 0), true, false},
			step{"SYN", f.out(tcpSYN, 0), false, true},
			step{"SYN ACK", f.in(tcpSYN|tcpACK, 0), true, true},
			step{"SYN ACK to another port", other.in(tcpSYN|tcpACK, 0), true, false},
			step{"ACK", f.out(tcpACK, 0), false, true},
			step{"data", f.in(tcpACK, 100), true, true},
			step{"FIN", f.in(tcpFIN|tcpACK, 0), true, true},
			step{"FIN back", f.out(tcpFIN|tcpACK, 0), false, true},
			step{"last ACK", f.in(tcpACK, 0), true, true},
			step{"new SYN from outside on the closed connection", f.in(tcpSYN, 0), true, false},
			step{"echo reply uninvited", frame{Packet: icmp(a[1], a[0], echoReply(a[1]), 9)}, true, false},
			step{"echo request out", frame{Packet: icmp(a[0], a[1], echoRequest(a[0]), 9)}, false, true},
			step{"echo reply", frame{Packet: icmp(a[1], a[0], echoReply(a[1]), 9)}, true, true},
			step{"echo request in under the same identifier", frame{Packet: icmp(a[1], a[0], echoRequest(a[1]), 9)},
				true, false},
		)
	}
}

func echoRequest(a string) uint8 { return map[bool]uint8{true: 8, false: 128}[addr(a).Is4()] }
func echoReply(a string) uint8   { return map[bool]uint8{true: 0, false: 129}[addr(a).Is4()] }

func TestStateOfAnotherInterfaceDoesNotCount(t *testing.T) {
	k := loadFirewall(t, `{}`)
	f := frame{Packet: udp(svc4, 5000, far4, 53)}
	k.pass(f.bytes(), false)
	var key key4
	var c conn
	if err := k.maps[mapOpening4].NextKey(nil, &key); err != nil {
		t.Fatal(err)
	}
	if err := k.maps[mapOpening4].Lookup(key, &c); err != nil {
		t.Fatal(err)
	}
	if err := k.maps[mapOpening4].Delete(key); err != nil {
		t.Fatal(err)
	}
	key.Ifindex++
	if err := k.maps[mapOpening4].Put(key, c); err != nil {
		t.Fatal(err)
	}
	k.steps(step{"answer at this interface", frame{Packet: udp(far4, 53, svc4, 5000)}, true, false})
}

func TestFragments(t *testing.T) {
	notEmulated(t)
	const rules = `"rules": [{"action": "allow", "direction": "ingress", "protocol": "udp", "dstPort": 53}]`
	first4 := frame{Packet: udp(far4, 9, svc4, 53), more: true, fragID: 7, payload: 32}
	later4 := frame{Packet: udp(far4, 9, svc4, 53), fragOff: 40, fragID: 7, payload: 32}
	first6 := frame{Packet: udp(far6, 9, svc6, 53), ext: []int{44, 60}, more: true, fragID: 7, payload: 32}
	later6 := frame{Packet: udp(far6, 9, svc6, 53), ext: []int{0, 44}, fragOff: 48, fragID: 7, payload: 32}
	for _, f := range []struct{ first, later frame }{{first4, later4}, {first6, later6}} {
		other, overlap, refused := f.later, f.later, f.first
		other.fragID = 8
		overlap.fragOff = 16
		refused.DstPort, refused.fragID = 54, 9
		refusedLater := f.later
		refusedLater.fragID = 9
		track := loadFirewall(t, `{`+rules+`}`)
		track.steps(
			step{"track: later before first", f.later, true, false},
			step{"track: first", f.first, true, true},
			step{"track: later", f.later, true, true},
			step{"track: later of another datagram", other, true, false},
			step{"track: later from the other side", f.later, false, false},
			step{"track: later over the header", overlap, true, false},
			step{"track: first that no rule allows", refused, true, false},
			step{"track: its later one", refusedLater, true, false},
		)
		if n := track.drops(dropFragment); n != 5 {
			t.Errorf("%d drops as fragments, want 5", n)
		}
		loadFirewall(t, `{"fragments": "allow", `+rules+`}`).steps(
			step{"allow: later alone", f.later, true, true}, step{"allow: first by rule", refused, true, false})
		loadFirewall(t, `{"fragments": "deny", `+rules+`}`).steps(
			step{"deny: first", f.first, true, false}, step{"deny: later", f.later, true, false})
	}
}

func TestExtensionHeaders(t *testing.T) {
	notEmulated(t)
	f := frame{Packet: tcp(svc6, 1, far6, 80, tcpSYN), ext: []int{0, 43, 60}}
	plain := frame{Packet: tcp(svc6, 1, far6, 80, tcpSYN)}
	const rules = `"rules": [{"action": "deny", "protocol": "tcp", "dstPort": 22}]`
	ssh := f
	ssh.DstPort = 22
	loadFirewall(t, `{`+rules+`}`).steps(step{"allowed", f, false, true},
		step{"rules see what follows", ssh, false, false})
	k := loadFirewall(t, `{"extensionHeaders": "deny", `+rules+`}`)
	k.steps(step{"denied", f, false, false}, step{"without", plain, false, true})
	if k.drops(dropExtension) != 1 {
		t.Error("drop was not counted as extension header")
	}
}

func TestMalformed(t *testing.T) {
	notEmulated(t)
	short := frame{Packet: udp(svc4, 1, far4, 2)}.bytes()[:36]
	k := loadFirewall(t, `{"defaultPolicy": {"egress": "allow"}}`)
	if k.pass(short, false) {
		t.Error("by default what does not parse is dropped")
	}
	if k.drops(dropMalformed) != 1 {
		t.Error("drop was not counted as malformed")
	}
	k = loadFirewall(t, `{"malformed": "allow", "antiSpoof": false, "defaultPolicy": {"egress": "deny"}}`)
	if !k.pass(short, false) {
		t.Error("malformed allow is not obeyed")
	}
}

// With default deny, only packets that the config allows pass, and malformed packets cause no error.
func TestHostileFrames(t *testing.T) {
	k := loadFirewall(t,
		`{"defaultPolicy": {"egress": "deny", "ingress": "deny"}, "nonIP": "deny", "linkControl": "rules", "antiSpoof": false,
		"rules": [{"action": "allow", "protocol": "tcp", "dstPort": 80}]}`)
	r := rand.New(rand.NewPCG(1, 2))
	whole := []frame{
		{Packet: udp(svc4, 1, far4, 80), vlans: 1, options: 40, payload: 13},
		{Packet: udp(svc6, 1, far6, 80), vlans: 2, ext: []int{0, 43, 44, 60}, payload: 1},
		{Packet: Packet{Src: addr(far4), Dst: addr(svc4), Proto: protoICMP, ICMPType: 3,
			Quoted: ptr(udp(svc4, 1, far4, 80))}},
		{Packet: Packet{Src: addr(far6), Dst: addr(svc6), Proto: protoICMPv6, ICMPType: 1,
			Quoted: ptr(udp(svc6, 1, far6, 80))}},
	}
	for _, f := range whole {
		text := f.bytes()
		tried := 0
		for n := 14; n <= len(text); n++ {
			for _, ingress := range []bool{false, true} {
				if passed, ran := k.try(text[:n], ingress); passed {
					t.Errorf("%+v cut to %d bytes passes", f, n)
				} else if ran {
					tried++
				}
			}
		}
		if tried < len(text) {
			t.Errorf("only %d test runs of frames up to %d bytes", tried, len(text))
		}
		for range 3000 {
			bad := append([]byte(nil), text...)
			for range 1 + r.IntN(3) {
				at := 12 + r.IntN(len(bad)-12)
				bad[at] = byte(r.IntN(256))
			}
			if passed, _ := k.try(bad, r.IntN(2) == 0); passed && !mayPass(bad) {
				t.Fatalf("passes: %x", bad)
			}
		}
	}
}

// try is pass for frames that the kernel may reject for test runs: IP frames that end within the header.
func (k *kernel) try(f []byte, ingress bool) (passed, ran bool) {
	k.t.Helper()
	p := k.egress
	if ingress {
		p = k.ingress()
	}
	ret, err := p.Run(&ebpf.RunOptions{Data: f})
	if err != nil && !errors.Is(err, unix.EINVAL) {
		k.t.Fatal(err)
	}
	return err == nil && ret != tcShot, err == nil
}

// mayPass reports whether a mutated frame may have become TCP.
func mayPass(f []byte) bool {
	for _, b := range f[14:] {
		if b == protoTCP {
			return true
		}
	}
	return false
}

func ptr[T any](v T) *T { return &v }

func TestFullTable(t *testing.T) {
	notEmulated(t)
	flow := func(port uint16) *tcpFlow { return newTCPFlow(svc4, port, far4, 80) }
	k := loadFirewall(t, `{"state": {"maxConnections": 2, "whenFull": "drop"}}`)
	if !k.establish(flow(1), 0) || !k.establish(flow(2), 0) || k.establish(flow(3), 0) {
		t.Error("drop: two connections should be established, a third one not")
	}
	if k.drops(dropTableFull) != 1 {
		t.Error("drop was not counted as full table")
	}
	k = loadFirewall(t, `{"state": {"maxConnections": 2}}`)
	third := flow(3)
	if !k.establish(flow(1), 0) || !k.establish(flow(2), 0) || !k.establish(third, 0) {
		t.Error("stateless: three connections should work")
	}
	if s, err := readStats(k.maps); err != nil || s.Established != 2 || s.Full != 1 {
		t.Errorf("%+v %v, want 2 established, 1 time full", s, err)
	}
	k.steps(step{"stateless: the third one's answers pass", third.in(tcpACK, 10), true, true})
}

// A flood of new connections, answered or not, does not affect an established connection.
func TestFloodSparesEstablished(t *testing.T) {
	notEmulated(t)
	k := loadFirewall(t,
		`{"rules": [{"action": "allow", "direction": "ingress", "protocol": "tcp", "dstPort": 80}], "defaultPolicy": {"egress": "deny"}, "antiSpoof": false}`)
	good := newTCPFlow(svc4, 80, far4, 999)
	if !k.establish(good, 1) {
		t.Fatal("no handshake")
	}
	for i := range 40000 {
		f := newTCPFlow(svc4, 80, fmt.Sprintf("198.51.%d.%d", i>>8&0xff, i&0xff), uint16(i))
		k.pass(f.in(tcpSYN, 0).bytes(), true)
		k.pass(f.out(tcpSYN|tcpACK, 0).bytes(), false)
	}
	if s, err := readStats(k.maps); err != nil || s.Established != 1 {
		t.Errorf("%+v %v, want 1 established", s, err)
	}
	k.steps(step{"answer of the established connection", good.out(tcpACK, 10), false, true})
}

// tick waits until the coarse clock has advanced.
func tick(t *testing.T) {
	t.Helper()
	var before, now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &before)
	for now = before; err == nil && now == before; time.Sleep(time.Millisecond) {
		err = unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestAgeing(t *testing.T) {
	f := compileConfig(t, `{"state": {"timeouts": {"tcpSyn": "1h"}}}`)
	f.config.State.Timeouts.UDP = 1
	k, flow := loadCompiled(t, f, nil), newTCPFlow(svc4, 1, far4, 53)
	k.pass(frame{Packet: udp(svc4, 1, far4, 53)}.bytes(), false)
	tick(t)
	k.steps(step{"answer to an expired UDP flow", frame{Packet: udp(far4, 53, svc4, 1)}, true, false})
	k.pass(flow.out(tcpSYN, 0).bytes(), false)
	tick(t)
	k.steps(step{"answer to a fresh TCP connection", flow.in(tcpSYN|tcpACK, 0), true, true})
}

func (k *kernel) live(ifindexes ...uint32) sdk.Live {
	return sdk.Live{Module: "fw", Maps: k.maps, Attachments: func() (out []sdk.Attachment) {
		for _, i := range ifindexes {
			out = append(out, sdk.Attachment{Service: "web", Interface: fmt.Sprint("veth", i), Ifindex: i})
		}
		return
	}}
}

func TestSweep(t *testing.T) {
	f := compileConfig(t, `{}`)
	f.config.State.assured = 0
	k := loadCompiled(t, f, nil)
	for _, a := range [][2]string{{svc4, far4}, {svc6, far6}} {
		k.pass(frame{Packet: udp(a[0], 1, a[1], 53)}.bytes(), false)
		k.pass(frame{Packet: udp(a[1], 53, a[0], 1)}.bytes(), true)
		k.pass(frame{Packet: udp(a[0], 1, a[1], 53)}.bytes(), false)
	}
	check := func(what string, want uint64, ifindexes ...uint32) {
		t.Helper()
		if err := k.open(k.live(ifindexes...)).sweep(); err != nil {
			t.Fatal(err)
		}
		if s, err := readStats(k.maps); err != nil || s.Established != want {
			t.Errorf("%s: %+v %v, want %d established", what, s, err, want)
		}
	}
	check("all alive", 2, 1)
	if err := k.correctTable(k.maps, census{1: 77}, census{}); err != nil {
		t.Fatal(err)
	}
	check("count put right", 2, 1)
	k.config.State.Timeouts.UDPStream = 1
	tick(t)
	check("expired", 0, 1)
	k.config.State.Timeouts.UDPStream = duration(time.Hour)
	k.pass(frame{Packet: udp(svc4, 1, far4, 53)}.bytes(), false)
	k.pass(frame{Packet: udp(far4, 53, svc4, 1)}.bytes(), true)
	k.pass(frame{Packet: udp(svc4, 1, far4, 53)}.bytes(), false)
	check("alive again", 1, 1)
	check("interface gone", 0)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	k.open(k.live(1)).Run(ctx) // returns, since its context has ended
}

// Map sets of a rule change do not each sweep the tables; new tables, and quotas for another number of interfaces, are
// swept at once.
func TestChangesOfRulesDoNotSweep(t *testing.T) {
	k := loadFirewall(t, `{}`)
	open := func(k *kernel, ifindexes ...uint32) *running {
		live := k.live(ifindexes...)
		live.Module = t.Name()
		return k.open(live)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { open(k, 1).Run(ctx) })
	wait.Until(t, "the first map set has swept", func() bool { _, swept := sweeps.Load(t.Name()); return swept })
	cancel()
	work.Wait()
	if open(k, 1).untilSweep() == 0 {
		t.Error("the next map set sweeps the same tables again")
	}
	if open(k, 1, 2).untilSweep() != 0 {
		t.Error("quotas are not set for another number of interfaces")
	}
	if open(loadFirewall(t, `{}`), 1).untilSweep() != 0 {
		t.Error("new tables have no quotas")
	}
}
