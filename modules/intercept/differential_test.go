// SPDX-License-Identifier: Apache-2.0

package intercept

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kerb-edge/kerb/internal/seed"
)

// Data plane and model make the same decisions. INTERCEPT_SECONDS sets the duration.
func TestAgainstModel(t *testing.T) {
	first, seconds := seed.Of(t), 1
	if n, err := strconv.Atoi(os.Getenv("INTERCEPT_SECONDS")); err == nil {
		seconds = n
	}
	onHooks(t, everything, func(t *testing.T, k *kernel) {
		configs, packets, found := uint64(0), 0, 0
		for end := time.Now().Add(time.Duration(seconds) * time.Second); configs < 20 || time.Now().Before(end); configs++ {
			r := rand.New(rand.NewPCG(first+configs, 1))
			c := randomConfig(r)
			if err := k.become(c); err != nil {
				t.Fatal(err)
			}
			for range 150 {
				f := randomFrame(r)
				want := decide(c, f)
				if got := k.decision(c, f.bytes()); got != want {
					text, _ := json.Marshal(c)
					t.Fatalf("class %d, want %d: %+v\n%s\nrepeat with %s=%d", got, want, f, text, seed.Variable, first+configs)
				}
				if packets++; want >= 0 {
					found++
				}
			}
		}
		t.Logf("%d configs, %d packets, %d of a class", configs, packets, found)
		if found < packets/10 || found > packets*9/10 {
			t.Error("the packets do not try the classes")
		}
	})
}

// become writes other classes to the maps.
func (k *kernel) become(c *config) error {
	if err := (&Intercept{config: c}).forget(k.maps, nil); err != nil {
		return err
	}
	if err := (&Intercept{config: c, consumers: newConsumers()}).Fill(k.maps); err != nil {
		return err
	}
	var e tableEntry
	return errors.Join(k.maps[mapTable].Lookup(1-k.half(), &e), k.maps[mapTable].Put(k.half(), e))
}

// decision returns the class whose counters a packet increments, or -1.
func (k *kernel) decision(c *config, raw []byte) int {
	var before [maxClasses]uint64
	for i, one := range c.Classes {
		n, err := readCounts(k.maps, one)
		if err != nil {
			k.t.Fatal(err)
		}
		before[i] = n.Packets
	}
	k.run(raw)
	for i, one := range c.Classes {
		if n, _ := readCounts(k.maps, one); n.Packets != before[i] {
			return i
		}
	}
	return -1
}

// decide is the model: it returns the first matching class.
func decide(c *config, f frame) int {
	return slices.IndexFunc(c.Classes, func(one *class) bool {
		return one.directions()&isIngress != 0 && f.matches(&one.Match)
	})
}

func (f frame) matches(m *match) bool {
	family := 6
	if f.src.Is4() {
		family = 4
	}
	contains := func(list []prefix, a netip.Addr) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(p prefix) bool { return p.Contains(a) })
	}
	hasPorts := f.fragOff == 0 && (f.proto == tcp || f.proto == udp)
	in := func(list []portRange, port uint16) bool {
		return len(list) == 0 || hasPorts && slices.ContainsFunc(list, func(r portRange) bool {
			return port >= r.First && port <= r.Last
		})
	}
	if m.Family != 0 && m.Family != family || m.Protocol.set && m.Protocol.number != f.proto {
		return false
	}
	if !contains(m.Destinations, f.dst) || !contains(m.Sources, f.src) || !in(m.Ports, f.dport) ||
		!in(m.SourcePorts, f.sport) {
		return false
	}
	payload := f.payload
	if f.fragOff > 0 {
		payload = nil
	}
	return !slices.ContainsFunc(m.Payload, func(c condition) bool { return !c.holds(payload) })
}

func (c condition) holds(payload []byte) bool {
	if int(c.Offset)+len(c.Bytes) > len(payload) {
		return false
	}
	got, want := bytes.Clone(payload[c.Offset:int(c.Offset)+len(c.Bytes)]), bytes.Clone(c.Bytes)
	for i := range c.Mask {
		got[i] &= c.Mask[i]
		want[i] &= c.Mask[i]
	}
	return bytes.Equal(got, want)
}

// Few values, so that packets match classes.
func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func randomConfig(r *rand.Rand) *config {
	var classes []map[string]any
	for i := range 1 + r.IntN(1+r.IntN(maxClasses)) {
		classes = append(classes, map[string]any{"name": fmt.Sprintf("c%d", i), "action": pick(r, "pass", "drop", "pass"),
			"match":     randomMatch(r),
			"direction": pick(r, "ingress", "ingress", "both", "egress")})
	}
	text, err := json.Marshal(map[string]any{"classes": classes})
	if err != nil {
		panic(err)
	}
	c, err := parseConfig(text)
	if err != nil {
		panic(fmt.Errorf("%w: %s", err, text))
	}
	return c
}

func randomMatch(r *rand.Rand) map[string]any {
	m := map[string]any{"protocol": pick[any](r, "udp", "tcp", "udp", 47, "icmp", "any")}
	some := func(name string, odds int, value any) {
		if r.IntN(odds) == 0 {
			m[name] = value
		}
	}
	if p := m["protocol"]; p == "udp" || p == "tcp" {
		some("ports", 2, randomPorts(r))
		some("sourcePorts", 4, randomPorts(r))
	}
	v4 := []string{"10.0.0.0/8", "10.0.0.2", "10.0.0.0/31", "0.0.0.0/0", "10.0.0.3/32"}
	v6 := []string{"fd00::/16", "fd00::2", "::/0", "fd00::/127"}
	for _, name := range []string{"sources", "destinations"} {
		some(name, 4, []string{pick(r, v4...), pick(r, v4...)})
	}
	if m["sources"] == nil && m["destinations"] == nil {
		some("destinations", 4, []string{pick(r, v6...)})
		some("sources", 4, []string{pick(r, v6...)})
	}
	some("payload", 3, randomConditions(r))
	return m
}

func randomPorts(r *rand.Rand) (out []any) {
	for range 1 + r.IntN(listLength) {
		first := r.IntN(6)
		out = append(out, pick[any](r, first, fmt.Sprintf("%d-%d", first, first+r.IntN(4)), "0-0", "65530-65535"))
	}
	return out
}

func randomConditions(r *rand.Rand) (out []map[string]any) {
	for range 1 + r.IntN(2) {
		n := 1 + r.IntN(10)
		c := map[string]any{"offset": r.IntN(4), "bytes": fmt.Sprintf("%x", bytes.Repeat([]byte{byte(r.IntN(2))}, n))}
		if r.IntN(2) == 0 {
			c["mask"] = fmt.Sprintf("%x", bytes.Repeat([]byte{pick[byte](r, 0, 1, 0xfe)}, n))
		}
		out = append(out, c)
	}
	return out
}

// maxHeaders is how far into the frame the transport header may start (KERB_MAX_HDRS).
const maxHeaders = 511

func randomFrame(r *rand.Rand) frame {
	f := frame{proto: pick[uint8](r, udp, tcp, udp, icmp, 47), sport: uint16(r.IntN(8)),
		dport: pick(r, uint16(r.IntN(8)), 65530, 65535),
		vlans: r.IntN(3), payload: bytes.Repeat([]byte{byte(r.IntN(2))}, r.IntN(16))}
	if f.proto == tcp {
		f.tcpOptions = r.IntN(3) * 4
	}
	if r.IntN(2) == 0 {
		f.src, f.dst = netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(4))}),
			netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(4))})
		f.options = r.IntN(3) * 4
	} else {
		f.src, f.dst = netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(r.IntN(4))}),
			netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(r.IntN(4))})
		f.ext = [][]uint8{nil, {0}, {0, 60}, {60}}[r.IntN(4)]
		if f.proto == icmp {
			f.proto = icmpv6
		}
	}
	if len(f.ext) > 0 && r.IntN(2) == 0 {
		f.extLen = 8 * (1 + r.IntN((maxHeaders-f.payloadAt())/8))
	}
	if r.IntN(6) == 0 {
		f.extLen = 0
		f.fragOff, f.more = r.IntN(2)*1480, true
		if !f.src.Is4() {
			f.ext = []uint8{44}
		}
	}
	return f
}
