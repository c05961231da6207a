// SPDX-License-Identifier: Apache-2.0

package responder

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/modules/responder/apps/speedlimit"
	"github.com/kerb-edge/kerb/sdk"
)

const echoConfig = `{"listeners": [{"app": "echo", "port": 7000, "sourceRate": 0}]}`

// get returns a normal request over IPv4, get6 over IPv6.
func get() packet {
	return packet{src: "192.0.2.50", dst: "192.0.2.1", sport: 40000, dport: 7000, payload: []byte("12345678")}
}

func get6() packet {
	p := get()
	p.src, p.dst = "2001:db8::50", "2001:db8::1"
	return p
}

// with modifies a request.
func (p packet) with(change func(*packet)) packet {
	change(&p)
	return p
}

// Each check separately: requests that fail it pass unchanged, and are counted under its name.
func TestChecks(t *testing.T) {
	edit := func(f func(f []byte, l3, l4 int)) func(*packet) { return func(p *packet) { p.edit = f } }
	ip4 := func(f func(h []byte)) func(*packet) {
		return edit(func(frame []byte, l3, _ int) { f(frame[l3:]); fixIP4(frame, l3) })
	}
	src := func(a string) func(*packet) { return func(p *packet) { p.src = a } }
	options := func(o ...byte) func(*packet) { return func(p *packet) { p.options = o } }
	extension := func(kind byte, body ...byte) func(*packet) {
		return func(p *packet) { p.extensions = []ext{{kind, body}} }
	}
	pad := []byte{0, 1, 4, 0, 0, 0, 0}
	for _, c := range []struct {
		name    string
		packet  packet
		outcome string // "" is counted nowhere, other: of no listener
		other   bool
	}{
		{name: "IPv4", packet: get(), outcome: "answered"},
		{name: "IPv6", packet: get6(), outcome: "answered"},
		{name: "VLAN", packet: get().with(func(p *packet) { p.vlan = []uint16{0x6005} }), outcome: "answered"},
		{name: "two VLANs", packet: get6().with(func(p *packet) { p.vlan = []uint16{100, 5} }), outcome: "answered"},
		{name: "no checksum", packet: get().with(func(p *packet) { p.checksum = none }), outcome: "answered"},
		{name: "no checksum on IPv6", packet: get6().with(func(p *packet) { p.checksum = none }), outcome: "checksum"},
		{name: "bad checksum", packet: get().with(func(p *packet) { p.checksum = bad }), outcome: "checksum"},
		{name: "bad checksum on IPv6", packet: get6().with(func(p *packet) { p.checksum = bad }), outcome: "checksum"},
		{name: "bad header checksum", packet: get().with(edit(func(f []byte, l3, _ int) { f[l3+10] ^= 1 })),
			outcome: "header_checksum"},
		{name: "odd length", packet: get6().with(func(p *packet) { p.payload = []byte("1234567") }), outcome: "answered"},
		{name: "empty", packet: get().with(func(p *packet) { p.payload = nil }), outcome: "answered"},
		{name: "longest", packet: get().with(func(p *packet) { p.payload = make([]byte, 1232) }), outcome: "answered"},
		{name: "reply too long", packet: get().with(func(p *packet) {
			p.payload = make([]byte, 1233)
		}), outcome: "reply_size"},
		{name: "request too long", packet: get().with(func(p *packet) { p.payload = make([]byte, 1473) }), outcome: "size"},
		{name: "jumbogram", packet: get6().with(edit(func(f []byte, _, l4 int) { f[l4+4], f[l4+5] = 0, 0 })),
			outcome: "size"},
		{name: "Ethernet padding", packet: get().with(func(p *packet) { p.tail = make([]byte, 10) }), outcome: "answered"},
		{name: "bytes behind the datagram", packet: get().with(func(p *packet) { p.extra = []byte("xyz") }),
			outcome: "answered"},
		{name: "another port", packet: get().with(func(p *packet) { p.dport = 7001 })},
		{name: "another address", packet: get().with(func(p *packet) { p.dst = "192.0.2.2" }), outcome: "other_address",
			other: true},
		{name: "to the broadcast address", packet: get().with(func(p *packet) { p.dst = "192.0.2.255" }),
			outcome: "other_address", other: true},
		{name: "TCP", packet: get().with(ip4(func(h []byte) { h[9] = 6; h[32] = 0x50 })), outcome: "malformed", other: true},
		{name: "first fragment", packet: get().with(ip4(func(h []byte) { h[6] = 0x20 })), outcome: "fragment"},
		{name: "later fragment", packet: get().with(ip4(func(h []byte) { h[7] = 1 })), outcome: "later_fragment",
			other: true},
		{name: "cut off", packet: get().with(ip4(func(h []byte) { be.PutUint16(h[2:], 37) })), outcome: "malformed",
			other: true},
		{name: "to a group of stations", packet: get().with(edit(func(f []byte, _, _ int) { f[0] |= 1 })),
			outcome: "link_address"},
		{name: "from a group of stations", packet: get().with(edit(func(f []byte, _, _ int) { f[6] |= 1 })),
			outcome: "link_address"},
		{name: "from the unspecified address", packet: get().with(src("0.0.0.0")), outcome: "source_address"},
		{name: "from loopback", packet: get().with(src("127.0.0.1")), outcome: "source_address"},
		{name: "from multicast", packet: get().with(src("224.0.0.1")), outcome: "source_address"},
		{name: "from broadcast", packet: get().with(src("255.255.255.255")), outcome: "source_address"},
		{name: "from directed broadcast", packet: get().with(src("192.0.2.255")), outcome: "source_address"},
		{name: "from the network itself", packet: get().with(src("192.0.2.0")), outcome: "source_address"},
		{name: "from itself", packet: get().with(src("192.0.2.1")), outcome: "source_address"},
		{name: "from the unspecified IPv6 address", packet: get6().with(src("::")), outcome: "source_address"},
		{name: "from loopback on IPv6", packet: get6().with(src("::1")), outcome: "source_address"},
		{name: "from multicast on IPv6", packet: get6().with(src("ff02::1")), outcome: "source_address"},
		{name: "from IPv4 on IPv6", packet: get6().with(src("::ffff:192.0.2.50")), outcome: "source_address"},
		{name: "from another responder", packet: get().with(func(p *packet) { p.sport = 7000 }), outcome: "source_port"},
		{name: "from port 0", packet: get().with(func(p *packet) { p.sport = 0 }), outcome: "source_port"},
		{name: "from chargen", packet: get6().with(func(p *packet) { p.sport = 19 }), outcome: "source_port"},
		{name: "No-Operation", packet: get().with(options(1, 1, 1, 0)), outcome: "answered"},
		{name: "40 bytes of options", packet: get().with(options(slices.Repeat([]byte{148, 4, 0, 0}, 10)...)),
			outcome: "answered"},
		{name: "record route", packet: get().with(options(7, 7, 4, 0, 0, 0, 0, 0)), outcome: "answered"},
		{name: "source route", packet: get().with(options(131, 7, 4, 10, 0, 0, 1, 0)), outcome: "options"},
		{name: "strict source route", packet: get().with(options(137, 7, 4, 10, 0, 0, 1, 0)), outcome: "options"},
		{name: "option of no length", packet: get().with(options(7, 0, 0, 0)), outcome: "options"},
		{name: "option beyond the header", packet: get().with(options(68, 9, 5, 0)), outcome: "options"},
		{name: "hop-by-hop", packet: get6().with(extension(0, pad...)), outcome: "answered"},
		{name: "destination options", packet: get6().with(extension(60, 0, 5, 2, 0, 0, 1, 0)), outcome: "answered"},
		{name: "option to be known", packet: get6().with(extension(60, 0, 0xc9, 4, 0, 0, 0, 0)), outcome: "options"},
		{name: "option beyond its header", packet: get6().with(extension(60, 0, 1, 5, 0, 0, 0, 0)), outcome: "options"},
		{name: "used routing header", packet: get6().with(extension(43, 0, 4, 0, 0, 0, 0, 0)), outcome: "answered"},
		{name: "routing header", packet: get6().with(extension(43, 0, 4, 1, 0, 0, 0, 0)), outcome: "options"},
		{name: "whole packet with a fragment header", packet: get6().with(extension(44, 0, 0, 0, 1, 2, 3, 4)),
			outcome: "answered"},
		{name: "authentication", packet: get6().with(extension(51, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1)), outcome: "options"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, k := range loadedOnce(t) {
				listener := "echo-7000"
				if c.other {
					listener = ""
				}
				before, frame := k.packets(listener), c.packet.frame()
				want := fuzzLikeModel(k.hook)
				wantVerdict, reply := want.run(slices.Clone(frame))
				got, out := k.run(frame)
				if got != wantVerdict || !slices.Equal(out, reply) {
					t.Errorf("%s: %s\n%x, model %s\n%x", k.hook, got, out, wantVerdict, reply)
				}
				if (c.outcome == "answered") != (got == answered) {
					t.Errorf("%s: %s", k.hook, got)
				}
				if c.outcome != "" && k.packets(listener)[c.outcome] != before[c.outcome]+1 {
					t.Errorf("%s: not counted as %s: before %v, after %v", k.hook, c.outcome, before, k.packets(listener))
				}
				if c.outcome == "" && !maps.Equal(before, k.packets(listener)) {
					t.Errorf("%s: counted: before %v, after %v", k.hook, before, k.packets(listener))
				}
			}
		})
	}
}

func fuzzLikeModel(hook chain.Hook) *model {
	m := fuzzModel(hook)
	m.listeners = []modelListener{{name: "echo-7000", app: "echo", port: 7000, maxReply: defaultReply}}
	return m
}

// once holds the echo of TestChecks, which has no state.
var once struct {
	sync.Mutex
	kernels []*kernel
}

func loadedOnce(t *testing.T) []*kernel {
	once.Lock()
	defer once.Unlock()
	if once.kernels == nil {
		for _, hook := range hooks {
			k := load(parentless{t}, hook, echoConfig)
			once.kernels = append(once.kernels, k.at(fuzzNetworks...))
		}
	}
	for _, k := range once.kernels {
		k.t = t
	}
	return once.kernels
}

// parentless keeps loaded kernels until the test process exits.
type parentless struct{ testing.TB }

func (parentless) Cleanup(func()) {}

// On XDP, a checksum that the sender offloaded is accepted on virtual interfaces only, unless configured otherwise. On
// TC the kernel knows that test runs have no such checksum.
func TestPartialChecksums(t *testing.T) {
	for _, c := range []struct {
		config, kind string
		want         verdict
	}{
		{"", "veth", answered}, {"", "tun", answered}, {"", "", passed}, {"", "vlan", passed},
		{`, "partialChecksums": "virtual"`, "veth", answered},
		{`, "partialChecksums": "accept"`, "", answered}, {`, "partialChecksums": "pass"`, "veth", passed},
	} {
		onHooks(t, strings.TrimSuffix(echoConfig, "}")+c.config+"}", func(t *testing.T, k *kernel) {
			if err := writeLocals(k.maps,
				[]sdk.Attachment{{Interface: "lo", Ifindex: testIndex, Kind: c.kind, Addresses: fuzzNetworks}}); err != nil {
				t.Fatal(err)
			}
			want := c.want
			if k.hook == chain.TC {
				want = passed
			}
			for _, p := range []packet{get(), get6()} {
				p.checksum = partial
				frame := p.frame()
				got, out := k.run(frame)
				if got != want || got == passed && !slices.Equal(out, frame) {
					t.Errorf("%+v: %s %x", c, got, out)
				}
			}
		})
	}
}

// Answers are limited to rate and burst per source, and to the total. Requests over the limit pass or are dropped.
func TestLimits(t *testing.T) {
	for over, want := range map[string]verdict{"pass": passed, "drop": dropped} {
		config := fmt.Sprintf(`{"listeners": [
			{"app": "echo", "name": "source", "port": 7000, "sourceRate": 100, "whenOver": %q},
			{"app": "echo", "name": "total", "port": 7001, "sourceRate": 0, "totalRate": 100, "whenOver": %[1]q},
			{"app": "echo", "name": "slow", "port": 7002, "sourceRate": 1, "whenOver": %[1]q}]}`, over)
		onHooks(t, config, func(t *testing.T, k *kernel) {
			k.at(fuzzNetworks...)
			send := func(p packet, n int) (taken int) {
				for range n {
					switch got, _ := k.run(p.frame()); got {
					case answered:
						taken++
					case want:
					default:
						t.Fatalf("over the limit: %s", got)
					}
				}
				return
			}
			// A burst is 2^27 ns of the rate, 13 requests, which refills over time. The data plane's clock is coarse.
			const rate, burst = 100, 13
			sent := 5000
			if os.Getenv("KERB_MATRIX") != "" {
				sent = 1000 // on Linux 5.10 an emulated test run takes 6 ms
			}
			due := func(begin time.Time) int { return burst + int(rate*(time.Since(begin)+time.Second)/time.Second) }
			for _, p := range []packet{get(), get6(), get().with(func(p *packet) { p.src = "192.0.2.51" })} {
				begin := time.Now()
				if n := send(p, sent); n < burst || n > due(begin) {
					t.Errorf("of one source %d of %d were answered", n, sent)
				}
			}
			same := 0
			for i := range 100 { // of one /64, at one a second
				same += send(get6().with(func(p *packet) { p.dport, p.src = 7002, fmt.Sprintf("2001:db8::%x", 0x50+i) }), 1)
			}
			if same < 1 || same > 50 {
				t.Errorf("%d of 100 from the same /64 were answered", same)
			}
			total, begin := 0, time.Now()
			for i := range sent {
				total += send(get().with(func(p *packet) { p.dport, p.src = 7001, fmt.Sprintf("192.0.2.%d", 2+i%200) }), 1)
			}
			if total < burst || total > due(begin) {
				t.Errorf("of all %d of %d were answered", total, sent)
			}
			if n := k.packets("source"); n["source_limit"] == 0 || n["total_limit"] != 0 {
				t.Errorf("counted %v", n)
			}
			if n := k.packets("total"); n["total_limit"] != uint64(sent-total) || n["answered"] != uint64(total) {
				t.Errorf("counted %v, %d answered", n, total)
			}
		})
	}
}

// A long reply to a short request counts as several, to limit amplification of forged requests.
func TestLimitsWeighReplies(t *testing.T) {
	const rate, weight = 100, 31 // 34 bytes with headers, 1045 of the reply
	config := fmt.Sprintf(
		`{"listeners": [{"app": "coap", "name": "things", "port": 5683, "sourceRate": %d, "amplification": 0, "resources": [{"path": "a", "value": %q}]}]}`,
		rate, strings.Repeat("v", 1000))
	onHooks(t, config, func(t *testing.T, k *kernel) {
		k.at(fuzzNetworks...)
		request := get().with(func(p *packet) { p.dport, p.payload = 5683, []byte{0x40, 1, 0, 1, 0xb1, 'a'} })
		begin, got := time.Now(), 0
		for range 500 {
			if v, _ := k.run(request.frame()); v == answered {
				got++
			}
		}
		if most := 2 + time.Since(begin).Seconds()*rate/weight; got == 0 || float64(got) > most {
			t.Errorf("%d replies, at most %.1f are due: %v", got, most, k.packets("things"))
		}
	})
}

func ask(op uint32) packet {
	return get().with(func(p *packet) { p.dport, p.payload = 8080, speed(binary.LittleEndian, op, 0) })
}

// limitOf sends a request and returns the limit.
func (k *kernel) limitOf(p packet) uint32 {
	k.t.Helper()
	got, out := k.run(p.frame())
	if got != answered {
		k.t.Fatalf("%s", got)
	}
	return binary.LittleEndian.Uint32(out[len(out)-4:])
}

// The kernel's cosine matches the formula, to the nearest km/h, for every number of cars. In user mode no request is
// answered.
func TestSpeedLimit(t *testing.T) {
	onHooks(t, `{"listeners": [{"app": "speedlimit", "port": 8080, "mode": "kernel", "sourceRate": 0}]}`,
		func(t *testing.T, k *kernel) {
			k.at(fuzzNetworks...)
			for cars := int64(1); cars <= 200; cars++ {
				if got, want := k.limitOf(ask(4)), speedlimit.Limit(cars); float64(got) != math.Round(want) {
					t.Errorf("%d cars: %d km/h, want %.4f", cars, got, want)
				}
			}
			for range 300 {
				if got, _ := k.run(ask(5).frame()); got != dropped {
					t.Fatalf("OUT_OF_RANGE %s", got)
				}
			}
			if got := k.cars("speedlimit-8080"); got != 0 {
				t.Errorf("%d cars in range", got)
			}
			samples, err := k.open(sdk.Live{Maps: k.maps}).Collect()
			values := map[string]float64{}
			for _, s := range samples {
				values[s.Labels["listener"]+" "+s.Labels["outcome"]] = s.Value
			}
			if diff := cmp.Diff(map[string]float64{"speedlimit-8080 answered": 200, "speedlimit-8080 consumed": 300},
				values); diff != "" || err != nil {
				t.Errorf("metrics: %v\n%s", err, diff)
			}
			if got := k.limitOf(ask(4)); got != 120 || k.cars("speedlimit-8080") != 1 {
				t.Errorf("after all have left: %d km/h, %d cars", got, k.cars("speedlimit-8080"))
			}
			drops, err := k.loaded.Drops("resp")
			if err != nil || drops[32] != 300 {
				t.Errorf("%v, %v", drops, err)
			}
		})
	onHooks(t, `{"listeners": [{"app": "speedlimit", "port": 8080, "mode": "user"}]}`, func(t *testing.T, k *kernel) {
		k.at(fuzzNetworks...)
		for _, op := range []uint32{4, 5} {
			if got, _ := k.run(ask(op).frame()); got != passed {
				t.Errorf("%s", got)
			}
		}
		if n := k.packets("speedlimit-8080"); n["user_mode"] != 2 {
			t.Errorf("counted %v", n)
		}
	})
}

// Cars arrive and leave on several CPUs concurrently, while user space changes their number: no update is lost.
func TestCountIsExact(t *testing.T) {
	onHooks(t, `{"listeners": [{"app": "speedlimit", "name": "sign", "port": 8080, "sourceRate": 0}]}`,
		func(t *testing.T, k *kernel) {
			k.at(fuzzNetworks...)
			const senders, each, changes = 4, 10000, 500
			var work sync.WaitGroup
			for s := range senders {
				work.Go(func() {
					r, frame := newRun(), ask(4).frame()
					if s == 0 {
						frame = ask(5).frame()
					}
					for range each {
						r.run(k, frame)
					}
				})
			}
			h := k.open(sdk.Live{Maps: k.maps})
			_, sign, err := h.one("sign")
			if err != nil {
				t.Fatal(err)
			}
			set := apps[k.listeners[0].number].App.(interface {
				SetState(sdk.Maps, appPlaced, rawMessage) error
			})
			for range changes {
				if err := set.SetState(k.maps, sign, rawMessage(`{"add": 1}`)); err != nil {
					t.Error(err)
				}
			}
			work.Wait()
			s := k.state("sign").(speedlimit.State)
			if s.Answered != (senders-1)*each || s.Left != each {
				t.Errorf("%d answered, %d left", s.Answered, s.Left)
			}
			// Departures without a client are not counted.
			if least := int64((senders-2)*each + changes); s.Cars < least || s.Cars > least+each {
				t.Errorf("%d cars, want %d to %d", s.Cars, least, least+each)
			}
			if err := set.SetState(k.maps, sign, rawMessage(`{"cars": 0}`)); err != nil {
				t.Fatal(err)
			}
			for range 5 {
				k.run(ask(5).frame())
			}
			if k.run(ask(4).frame()); k.cars("sign") != 1 {
				t.Errorf("%d cars, want 1", k.cars("sign"))
			}
		})
}

// Counters and states belong to a listener's name: they survive changes of other listeners, and restarts of the control
// plane.
func TestSlots(t *testing.T) {
	k := load(t, chain.XDP, `{"listeners": [{"app": "speedlimit", "name": "sign", "port": 8080, "sourceRate": 0}]}`).at(
		fuzzNetworks...)
	for range 3 {
		k.run(ask(4).frame())
	}
	other := compileConfig(t,
		`{"listeners": [{"app": "echo", "port": 9}, {"app": "speedlimit", "name": "sign", "port": 8080, "mode": "mixed"}]}`)
	if err := other.Fill(k.maps); err != nil {
		t.Fatal(err)
	}
	k.Responder = compileConfig(t,
		`{"listeners": [{"app": "echo", "port": 9}, {"app": "speedlimit", "name": "sign", "port": 8080, "mode": "mixed"}]}`)
	if k.cars("sign") != 3 || k.packets("sign")["answered"] != 3 {
		t.Errorf("%d cars, packets %v", k.cars("sign"), k.packets("sign"))
	}
	// With many other listeners, the slot of a running sign stays unchanged; that of a removed one is cleared and reused.
	others := func() {
		for i := range 70 {
			if err := compileConfig(t, fmt.Sprintf(`{"listeners": [{"app": "speedlimit", "name": "s%d", "port": 8080}]}`,
				i)).Fill(k.maps); err != nil {
				t.Fatal(err)
			}
		}
	}
	placed, err := k.place(k.maps)
	if err != nil {
		t.Fatal(err)
	}
	if err := claim(k.maps, placed); err != nil {
		t.Fatal(err)
	}
	others()
	if k.cars("sign") != 3 || k.packets("sign")["answered"] != 3 {
		t.Errorf("configs that never ran took the slot of one that does: %d cars, packets %v", k.cars("sign"),
			k.packets("sign"))
	}
	if err := claim(k.maps, nil); err != nil {
		t.Fatal(err)
	}
	others()
	if err := compileConfig(t, `{"listeners": [{"app": "speedlimit", "name": "sign", "port": 8080}]}`).Fill(
		k.maps); err != nil {
		t.Fatal(err)
	}
	k.Responder = compileConfig(t, `{"listeners": [{"app": "speedlimit", "name": "sign", "port": 8080}]}`)
	if k.cars("sign") != 0 || len(k.packets("sign")) != 0 {
		t.Errorf("a new sign begins with %d cars, packets %v", k.cars("sign"), k.packets("sign"))
	}
}

// Interfaces of the node answer for all of the node's addresses; a service answers for its own only.
func TestAddressesOfAttachPoints(t *testing.T) {
	at := func(service string, index uint32, addresses ...string) sdk.Attachment {
		return sdk.Attachment{Service: service, Interface: fmt.Sprint("i", index), Ifindex: index, Addresses: addresses}
	}
	v4, v6, err := locals([]sdk.Attachment{at("", 1, "192.0.2.1/24", "192.0.2.255/32"),
		at("", 2, "198.51.100.4/31", "2001:db8::1/64"), at("web", 3, "203.0.113.9/30")})
	if err != nil {
		t.Fatal(err)
	}
	node := map[[4]byte]uint32{{192, 0, 2, 1}: isOwn, {192, 0, 2, 0}: isBroadcast, {192, 0, 2, 255}: isOwn,
		{198, 51, 100, 4}: isOwn}
	want4 := map[local4]uint32{{3, [4]byte{203, 0, 113, 9}}: isOwn, {3, [4]byte{203, 0, 113, 8}}: isBroadcast,
		{3, [4]byte{203, 0, 113, 11}}: isBroadcast}
	for a, kind := range node {
		want4[local4{1, a}], want4[local4{2, a}] = kind, kind
	}
	one := netip.MustParseAddr("2001:db8::1").As16()
	if diff := cmp.Diff(want4, v4); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[local6]uint32{{1, one}: isOwn, {2, one}: isOwn}, v6); diff != "" {
		t.Error(diff)
	}
	if _, _, err := locals([]sdk.Attachment{at("web", 1, "nonsense")}); err == nil {
		t.Error("took nonsense for an address")
	}
}

func TestConfigErrors(t *testing.T) {
	for config, field := range map[string]string{
		`{"listeners": [{"app": "nothing", "port": 1}]}`:                                                    "listeners[0].app",
		`{"listeners": [{"app": "echo", "port": 1}, {"app": "echo", "port": 1, "name": "b"}]}`:              "listeners[1].port",
		`{"listeners": [{"app": "echo", "port": 1, "name": "a"}, {"app": "echo", "port": 2, "name": "a"}]}`: "listeners[1].name",
		`{"listeners": [{"app": "echo", "port": 1, "addresses": ["224.0.0.1"]}]}`:                           "listeners[0].addresses",
		`{"listeners": [{"app": "echo", "port": 1, "addresses": ["192.0.2.1", "192.0.2.1"]}]}`:              "listeners[0].addresses",
		`{"listeners": [{"app": "echo", "port": 1, "mode": "kernel"}]}`:                                     "listeners[0].mode",
		`{"listeners": [{"app": "speedlimit", "port": 1, "mode": "fast"}]}`:                                 "listeners[0].mode",
		`{"listeners": [{"app": "speedlimit", "port": 1, "recompute": "0s"}]}`:                              "listeners[0].recompute",
		`{"listeners": [], "typo": 1}`:                                                                      "typo",
	} {
		_, err := Control().Compile(rawMessage(config))
		wrong, ok := err.(*sdk.ConfigError)
		if !ok || wrong.Field != field {
			t.Errorf("%s: %v, want an error at %s", config, err, field)
		}
	}
}

// Layouts shared by C and Go.
func TestLayouts(t *testing.T) {
	p := pkgstest.Package(t)
	spec, err := p.Spec("xdp")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][2]int{mapListeners4: {8, 72}, mapListeners6: {20, 72}, mapPorts: {4, binary.Size(ports{})},
		mapLocal4: {binary.Size(local4{}), 4},
		mapLocal6: {binary.Size(local6{}), 4}, mapCounts: {4, binary.Size(counts{})}, mapOwners: {4, binary.Size(owner{})},
		mapFeeds: {4, binary.Size(feed{})}}
	got := map[string][2]int{}
	for name := range want {
		m := spec.Maps[name]
		got[name] = [2]int{int(m.KeySize), int(m.ValueSize)}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Go - C +\n%s", diff)
	}
	if binary.Size(Entry{}) != 72 || binary.Size(key4{}) != 8 || binary.Size(key6{}) != 20 ||
		spec.Maps[mapCounts].MaxEntries != slots {
		t.Error("entries differ")
	}
}
