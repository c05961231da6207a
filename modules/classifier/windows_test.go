// SPDX-License-Identifier: Apache-2.0

package classifier_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/kerb-edge/kerb/bench/traffic"
	"github.com/kerb-edge/kerb/modules/classifier/extract"
)

// timed is a packet with the time at which the data plane receives it.
type timed struct {
	time uint64
	send func()
}

// lapsing makes the data plane's timer end windows.
var lapsing = settings{"lapse_ns": second / 50}

// sameAsCapture compares all windows of a capture with those that the data plane counts for the same packets; its timer
// ends the windows of silent sources.
func sameAsCapture(t *testing.T, k *kernel, o *traffic.Options, file string, packets []timed,
	keyOf func(source string) key) {
	t.Helper()
	ends, n := map[uint64][]traffic.Window{}, 0
	if err := o.Windows(file, func(w traffic.Window) error {
		ends[w.Time], n = append(ends[w.Time], w), n+1
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	step := uint64(o.Window)
	if o.Sliding {
		step /= 4
	}
	next := packets[0].time/step*step + step
	for _, p := range packets {
		for ; next <= p.time; next += step {
			want := ends[next]
			delete(ends, next)
			k.at(next)
			k.until("the timer has ended all windows", func() bool { return k.len("windows") >= len(want) })
			for _, w := range want {
				sameWindow(t, k, keyOf(w.Source), w.Values, w.Time)
			}
			if extra := k.len("windows"); extra != 0 {
				t.Fatalf("the data plane has %d more windows that end at %d", extra, next)
			}
		}
		k.at(p.time)
		p.send()
	}
	if len(ends) != 0 || n < 10 {
		t.Errorf("%d windows; of moments at which the data plane ended none: %v", n, ends)
	}
	t.Logf("%d windows", n)
}

// kerb model windows gives the same counts for a capture of frames as the data plane.
func TestWindowsOfFrames(t *testing.T) {
	needTimers(t)
	for name, c := range map[string]extract.Config{
		"contiki-dis.pcap":   {Window: time.Second, Repeat: 250 * time.Millisecond},
		"contiking-dao.pcap": {Window: 4 * time.Second, Sliding: true, Repeat: 250 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name)
			k := load(t, hooks[len(name)%2], with(inEthernet, constants(c), lapsing))
			var packets []timed
			for _, h := range capture(t, path) {
				packets = append(packets, timed{h.time - epoch, func() { k.run(wrapped(h.frame)) }})
			}
			sameAsCapture(t, k, &traffic.Options{Config: c, Extractor: "rpl"}, path, packets, func(source string) key {
				a := netip.MustParseAddr(source).As16()
				return nodeKey(extract.Node{ID: be.Uint64(a[8:])})
			})
		})
	}
}

// The same for IP packets in both directions, with VLANs, fragments and padding, of which only headers were captured.
func TestWindowsOfFlows(t *testing.T) {
	needTimers(t)
	for name, c := range map[string]extract.Config{
		"flows": {Window: time.Second}, "peers": {Window: 2 * time.Second, Sliding: true, ByPeer: true},
	} {
		t.Run(name, func(t *testing.T) {
			in := load(t, hooks[len(name)%2], with(constants(c), lapsing, settings{"extractor": uint8(1)}))
			out := in.otherWay()
			r := &randomFrames{Rand: rand.New(rand.NewPCG(3, 9))}
			var file bytes.Buffer
			w, err := pcapgo.NewNgWriter(&file, layers.LinkTypeEthernet)
			if err != nil {
				t.Fatal(err)
			}
			var packets []timed
			keys, now := map[string]key{}, 100*second
			for range 800 {
				now += pick[uint64](r, 1000, 300_000, 5e6, 30e6, 90e6)
				f, fromLocal := r.flow(), r.IntN(2) == 0
				frame, p := f.packet(r, fromLocal)
				if r.IntN(4) == 0 {
					frame = append(append(append([]byte{}, frame[:12]...), 0x81, 0, 0, 5), frame[12:]...)
				}
				if c.ByPeer {
					p.Flow = extract.Flow{Remote: p.Remote}
				}
				keys[nameOf(p.Flow)] = flowKey(p.Flow)
				info := gopacket.CaptureInfo{Timestamp: time.Unix(0, int64(now)), Length: len(frame),
					CaptureLength: min(len(frame), 110)}
				if err := w.WritePacket(info, frame[:info.CaptureLength]); err != nil {
					t.Fatal(err)
				}
				k := in
				if fromLocal {
					k = out
				}
				packets = append(packets, timed{now, func() { k.run(frame) }})
			}
			path := filepath.Join(t.TempDir(), "flows.pcapng")
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			o := &traffic.Options{Config: c, Extractor: "flow",
				Local: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32"), netip.MustParsePrefix("2001:db8:1::/64")}}
			sameAsCapture(t, in, o, path, packets, func(source string) key { return keys[source] })
		})
	}
}

func nameOf(f extract.Flow) string {
	if !f.Local.IsValid() {
		return f.Remote.Unmap().String()
	}
	protocol := map[uint8]string{1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6", 132: "sctp"}[f.Proto]
	return fmt.Sprintf("%s-%v-%v", protocol, netip.AddrPortFrom(f.Remote.Unmap(), f.RemotePort),
		netip.AddrPortFrom(f.Local.Unmap(), f.LocalPort))
}
