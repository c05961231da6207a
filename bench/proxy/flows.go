// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/bench/internal/inject"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/packet"
)

// The loads of many flows: a number of open TCP connections, whose packets are sent one after the other, evenly
// (uniform) or with Zipf's distribution (zipf).
const flowPrefix = "flows/"

var flowLoads = []string{"flows/uniform-1", "flows/uniform-1k", "flows/uniform-10k", "flows/uniform-100k",
	"flows/zipf-1k", "flows/zipf-10k", "flows/zipf-100k"}

const (
	flowPort      = 8000 // and the following ports
	flowsPerPort  = 60_000
	firstPort     = 1024
	zipfExponent  = 1.1
	flowSeed      = 7
	flowFrames    = 50_000
	establishStep = 4096    // below Kerb's limit for new sessions per interface
	kerbSessions  = 1 << 17 // as many buckets as conntrack by default, with twice as many entries
)

// flowNumber returns the number of flows of a load.
func flowNumber(load string) (int, error) {
	_, word, _ := strings.Cut(load, "-")
	digits, thousands := strings.CutSuffix(word, "k")
	n, err := strconv.Atoi(digits)
	if thousands {
		n *= 1000
	}
	return n, err
}

// order returns the sequence of flows whose packets are sent.
func order(load string, n int) []int {
	random := rand.New(rand.NewPCG(flowSeed, uint64(n)))
	if !strings.HasPrefix(load, flowPrefix+"zipf") {
		return random.Perm(n)
	}
	zipf := rand.NewZipf(random, zipfExponent, 1, uint64(n-1))
	name := random.Perm(n) // distributes busy flows over the tables
	out := make([]int, inject.MaxPackets)
	for i := range out {
		out[i] = name[zipf.Uint64()]
	}
	return out
}

func runFlows(ctx context.Context, r *bench.Run, load string) error {
	n, err := flowNumber(load)
	if err != nil {
		return err
	}
	if err := checkConntrack(n); err != nil {
		return err
	}
	r.Note("flows/...: forward is the path from client to server, reply the path back; hot is forward with packets of " +
		"one flow only, while all flows are open; packet and packet_hot are Kerb's share; conntrack does not verify " +
		"checksums")
	var trials []bench.Trial
	for _, c := range configs[:4] {
		var f *flows
		trials = append(trials, bench.Trial{Config: c.name,
			Open:    func() (_ io.Closer, err error) { f, err = openFlows(c, load, n); return f, err },
			Measure: func(context.Context) ([]bench.Sample, error) { return f.measure(r.Quick) }})
	}
	return r.Interleave(ctx, load, trials...)
}

// checkConntrack rejects limits at which the references would drop packets.
func checkConntrack(flows int) error {
	const limit = "/proc/sys/net/netfilter/nf_conntrack_max"
	text, err := os.ReadFile(limit)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the module is loaded with the first rule, with a limit that depends on memory
	}
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || n < 2*flows {
		return fmt.Errorf("%s is %q; raise it to %d for %d flows", limit, text, 2*flows, flows)
	}
	return nil
}

// flows are open connections from the client to the server.
type flows struct {
	*topology
	inject      *inject.Injector
	clientMAC   net.HardwareAddr // destination of frames to the client
	serverMAC   net.HardwareAddr
	order       []int
	there, back []inject.Headers // packets of the flows in order
	busiest     []inject.Headers
}

func openFlows(c config, load string, n int) (*flows, error) {
	g, err := openLab(c, virtual["same-node/ipv4"])
	if err != nil {
		return nil, err
	}
	f := &flows{topology: g, order: order(load, n)}
	return f, f.CloseOn(errors.Join(f.prepare(), f.establish(n)))
}

// prepare builds the packets before any is sent, so that no round spends time on it. If services are routed, frames are
// addressed to the gateway instead of the other service.
func (f *flows) prepare() (err error) {
	f.clientMAC, f.serverMAC = f.client.MAC(), f.server.MAC()
	if f.config.routed {
		if f.clientMAC, err = f.outerMAC(f.server); err != nil {
			return err
		}
		if f.serverMAC, err = f.outerMAC(f.client); err != nil {
			return err
		}
		// Devices mark verified checksums; live test runs do not.
		err = f.lab.Node().Do(func() error {
			return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_checksum", []byte("0"), 0)
		})
		if err != nil {
			return err
		}
	}
	for _, i := range f.order {
		f.there = append(f.there, f.request(i, "A"))
		f.back = append(f.back, f.reply(i, "A"))
	}
	f.busiest = f.there[:1]
	if f.inject, err = inject.Open(f.lab.Node(), f.client, f.server); err == nil {
		f.Later(f.inject.Close)
	}
	return err
}

// outerMAC returns the MAC address of a routed host's gateway.
func (f *flows) outerMAC(h *netlab.Host) (mac net.HardwareAddr, err error) {
	err = f.lab.Node().Do(func() error {
		link, err := netlink.LinkByName(h.Outer())
		if err == nil {
			mac = link.Attrs().HardwareAddr
		}
		return err
	})
	return mac, err
}

func (f *flows) request(i int, flags string) inject.Headers {
	return segment(netip.AddrPortFrom(f.client.Addr4(), clientPort(i)),
		netip.AddrPortFrom(f.destination(), serverPort(i)), flags)
}

func (f *flows) reply(i int, flags string) inject.Headers {
	return segment(netip.AddrPortFrom(f.server.Addr4(), serverPort(i)),
		netip.AddrPortFrom(f.client.Addr4(), clientPort(i)), flags)
}

func clientPort(i int) uint16 { return firstPort + uint16(i%flowsPerPort) }
func serverPort(i int) uint16 { return flowPort + uint16(i/flowsPerPort) }

// segment returns a segment without data. A SYN has sequence number 1, later segments 2.
func segment(from, to netip.AddrPort, flags string) inject.Headers {
	t := packet.TCP{Ports: packet.Ports{Src: from.Port(), Dst: to.Port()}, Flags: flags, Seq: 2}
	if strings.Contains(flags, "S") {
		t.Seq = 1
	}
	if strings.Contains(flags, "A") {
		t.Ack = 2
	}
	return inject.HeadersOf(packet.Fields{Src: from.Addr(), Dst: to.Addr(), TCP: &t})
}

// establish opens all flows, a few thousand at a time, after the node has resolved its neighbours.
func (f *flows) establish(n int) error {
	_, err1 := f.send(true, []inject.Headers{f.request(0, "S")}, 1, 1)
	_, err2 := f.send(false, []inject.Headers{f.reply(0, "SA")}, 1, 1)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for first := 0; first < n; first += establishStep {
		var syn, answer []inject.Headers
		for i := first; i < min(first+establishStep, n); i++ {
			syn = append(syn, f.request(i, "S"))
			answer = append(answer, f.reply(i, "SA"))
		}
		_, err := f.send(true, syn, 1, len(syn))
		if err == nil {
			_, err = f.send(false, answer, 1, len(answer))
		}
		if err != nil {
			return fmt.Errorf("flows %d and up: %w", first, err)
		}
	}
	return nil
}

// send sends packets from the client to the server or back, and returns the time of one in ns: the median of several
// runs.
func (f *flows) send(there bool, packets []inject.Headers, runs, count int) (float64, error) {
	from, to, mac := f.client, f.server, f.serverMAC
	if !there {
		from, to, mac = f.server, f.client, f.clientMAC
	}
	frame := make([]byte, 60)
	copy(frame, mac)
	copy(frame[6:], from.MAC())
	frame[12] = 8
	copy(frame[14:], packets[0][:])
	if err := f.inject.SetPackets(frame, packets); err != nil {
		return 0, err
	}
	var times []float64
	err := f.inject.WithSink(to, func() error {
		for range runs {
			ns, got, err := f.inject.Send(from, frame, uint32(count))
			if err != nil {
				return err
			}
			if got < uint64(count)*999/1000 {
				return fmt.Errorf("only %d of %d packets of %d arrived at the %s", got, count, len(packets), to.Name())
			}
			times = append(times, ns)
		}
		return nil
	})
	return bench.Median(times), err
}

// measure returns the time of a packet with many flows, and with packets of a single one (hot), whose entries stay in
// the caches while all flows remain open.
func (f *flows) measure(quick bool) ([]bench.Sample, error) {
	runs := 15
	if quick {
		runs = 5
	}
	var samples []bench.Sample
	add := func(metric string, ns float64, err error) error {
		samples = append(samples, bench.P50(metric, "ns", ns))
		return err
	}
	hot, err1 := f.send(true, f.busiest, runs, flowFrames)
	forward, err2 := f.send(true, f.there, runs, flowFrames)
	reply, err3 := f.send(false, f.back, runs, flowFrames)
	if err := errors.Join(add("hot", hot, err1), add("forward", forward, err2), add("reply", reply, err3)); err != nil {
		return nil, err
	}
	if f.kerb == nil {
		return samples, nil
	}
	measure := func(packets []inject.Headers) (float64, error) {
		return f.kerb.packet(func() error {
			_, err := f.send(true, packets, 3, flowFrames)
			return err
		})
	}
	hot, err1 = measure(f.busiest)
	all, err2 := measure(f.there)
	return samples, errors.Join(add("packet_hot", hot, err1), add("packet", all, err2))
}
