// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/kerb-edge/kerb/internal/packet"
)

// A packet has the same key on every node: whatever forwarding, network cards and links change of it. What makes it
// another packet gives it another key.
func TestKeyOfPacket(t *testing.T) {
	keys := newKeyReader(t)
	for _, text := range []string{"udp 192.0.2.1:4000 > 192.0.2.2:53 length 40",
		"udp 192.0.2.1:4000 > 192.0.2.2:53 length 2",
		"udp [2001:db8::1]:4000 > [2001:db8::2]:53 length 3", "tcp 192.0.2.1:4000 > 192.0.2.2:80 syn",
		"tcp [2001:db8::1]:4000 > [2001:db8::2]:80 ack", "icmp 192.0.2.1 > 192.0.2.2"} {
		fields, err := packet.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		frame, err := fields.Frame()
		if err != nil {
			t.Fatal(err)
		}
		v6 := frame[14]>>4 == 6
		transport, checksum, hops := 34, 16, 22
		if v6 {
			transport, hops = 54, 21
		}
		switch gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default).TransportLayer().(type) {
		case *layers.UDP:
			checksum = 6
		case nil:
			checksum = 2
		}
		same := map[string]func([]byte) []byte{
			"the same":          func(f []byte) []byte { return f },
			"other MAC address": func(f []byte) []byte { f[0] ^= 2; return f },
			"one more hop":      func(f []byte) []byte { f[hops]--; return f },
			"other checksum":    func(f []byte) []byte { f[transport+checksum] ^= 0xff; return f },
			"padded frame":      func(f []byte) []byte { return append(f, make([]byte, 40)...) },
		}
		others := map[string]func([]byte) []byte{
			"other source":      func(f []byte) []byte { f[transport-8] ^= 1; return f }, // IPv6: destination
			"other destination": func(f []byte) []byte { f[transport-1] ^= 1; return f },
			"other word":        func(f []byte) []byte { f[transport+5] ^= 1; return f },
		}
		if !v6 {
			others["other identification"] = func(f []byte) []byte { f[18] ^= 1; return f }
			same["other checksum of IP"] = func(f []byte) []byte { f[24] ^= 1; return f }
		}
		want := keys.of(t, frame)
		for name, change := range same {
			if got := keys.of(t, change(append([]byte(nil), frame...))); got != want || want == 0 {
				t.Errorf("%s, %s: key %x, want %x", text, name, got, want)
			}
		}
		for name, change := range others {
			if got := keys.of(t, change(append([]byte(nil), frame...))); got == want || got == 0 {
				t.Errorf("%s, %s: the key is the same, %x", text, name, got)
			}
		}
	}
}

// keyReader is a traced chain of one module on each hook.
type keyReader []tracedEntry

type tracedEntry struct {
	*Trace
	entry *ebpf.Program
}

func newKeyReader(t *testing.T) (all keyReader) {
	t.Helper()
	for _, s := range sides {
		l := load(t, s.side, s.dir, testModule(t, "pass", "count", nil))
		trace, err := NewTrace(TraceFilter{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(trace.Close)
		c, err := trace.link(l.chain.spec, l.mapSets, 1, l.chain)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, tracedEntry{trace, c.entry()})
	}
	return all
}

// of is the key of a packet at the head of each chain, and behind a module that changes nothing.
func (k keyReader) of(t *testing.T, frame []byte) (key uint64) {
	t.Helper()
	for n, c := range k {
		run(t, c.entry, frame)
		for i := range 2 {
			e, err := c.Read(time.Now().Add(30 * time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if key != 0 && e.Key != key {
				t.Errorf("event %d on %s has the key %x, others %x", i, sides[n].side, e.Key, key)
			}
			key = e.Key
		}
	}
	return key
}
