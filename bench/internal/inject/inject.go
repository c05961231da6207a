// SPDX-License-Identifier: Apache-2.0

// Package inject sends frames from a lab's hosts with XDP test runs in live-frames mode (Linux 5.18), and counts those
// that arrive at another host, before its stack. It measures the whole path of a packet through the node.
package inject

import (
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/kerb-edge/kerb/bench"
	"github.com/kerb-edge/kerb/internal/lab/netlab"
	"github.com/kerb-edge/kerb/internal/lab/traffic"
	"github.com/kerb-edge/kerb/internal/packet"
)

//go:embed *.bpf.*
var files embed.FS

// MaxPackets is the maximum number of headers for SetPackets, as in inject.bpf.c.
const MaxPackets = 1 << 17

// LiveFrames is BPF_F_TEST_XDP_LIVE_FRAMES (linux/bpf.h).
const LiveFrames = 1 << 1

const liveBatch = 64

// Headers has the fields of IPv4 and TCP or UDP headers.
type Headers [40]byte

// HeadersOf returns the headers of an IPv4 packet.
func HeadersOf(f packet.Fields) (h Headers) {
	frame, err := f.Frame()
	if err != nil {
		panic(err) // wrong addresses or flags of the caller
	}
	copy(h[:], frame[14:])
	return h
}

// Injector sends and counts packets. It is not safe for concurrent use.
type Injector struct {
	node  *netlab.Namespace
	bpf   *ebpf.Collection
	links []link.Link
}

// Open attaches programs to the outer interfaces of the sending hosts: live test runs need an interface with native
// XDP.
func Open(node *netlab.Namespace, senders ...*netlab.Host) (*Injector, error) {
	spec, err := bench.Object(files, "inject.bpf.o")
	if err != nil {
		return nil, err
	}
	i := &Injector{node: node}
	if i.bpf, err = ebpf.NewCollection(spec); err != nil {
		return nil, err
	}
	for _, h := range senders {
		l, err := bench.AttachXDP(node, h.Outer(), i.bpf.Programs["pass"])
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", h.Name(), err), i.Close())
		}
		i.links = append(i.links, l)
	}
	return i, nil
}

// Close detaches the programs.
func (i *Injector) Close() error {
	i.bpf.Close()
	return bench.CloseAll(i.links)
}

// SetPackets makes Send cycle through these headers after the Ethernet header of the frame. Without arguments, Send
// sends the frame unchanged.
func (i *Injector) SetPackets(frame []byte, packets []Headers) error {
	if len(packets) > MaxPackets {
		return fmt.Errorf("%d packets, at most %d are possible", len(packets), MaxPackets)
	}
	if len(packets) > 0 {
		keys := make([]uint32, len(packets))
		for at := range keys {
			keys[at] = uint32(at)
		}
		if _, err := i.bpf.Maps["packets"].BatchUpdate(keys, packets, nil); err != nil {
			return fmt.Errorf("packet generator: %w", err)
		}
	}
	c := cursor{Count: uint32(len(packets))}
	copy(c.Ethernet[:], frame)
	return i.bpf.Maps["cursor"].Update(uint32(0), c, ebpf.UpdateAny)
}

// cursor mirrors struct cursor of inject.bpf.c.
type cursor struct {
	Next, Count uint32
	Ethernet    [14]byte
	Zero        uint16
}

// WithSink runs f on one CPU, while IPv4 packets that arrive at a host are dropped before its stack, which would reply.
func (i *Injector) WithSink(to *netlab.Host, f func() error) error {
	var qdisc *netlink.Clsact
	err := to.Do(func() (err error) { qdisc, err = i.addSink(to); return err })
	if err != nil {
		return fmt.Errorf("sink: %w", err)
	}
	err = traffic.RunOnCPU(1, f)
	return errors.Join(err, to.Do(func() error { return netlink.QdiscDel(qdisc) }))
}

func (i *Injector) addSink(to *netlab.Host) (*netlink.Clsact, error) {
	nic, err := netlink.LinkByName(to.Interface())
	if err != nil {
		return nil, err
	}
	qdisc, err := bench.AddClsact(nic.Attrs().Index)
	if err != nil {
		return nil, err
	}
	return qdisc, bench.PutFilter(qdisc.LinkIndex, netlink.HANDLE_MIN_INGRESS, 1, 1, i.bpf.Programs["sink"])
}

func (i *Injector) arrived() (sum uint64, err error) {
	var perCPU []uint64
	if err := i.bpf.Maps["arrived"].Lookup(uint32(0), &perCPU); err != nil {
		return 0, err
	}
	for _, n := range perCPU {
		sum += n
	}
	return sum, nil
}

// XDPMD is struct xdp_md (linux/bpf.h).
type XDPMD struct {
	Data, DataEnd, DataMeta, IngressIfindex, RxQueueIndex, EgressIfindex uint32
}

// Send sends the frame count times. It returns the time per frame and, within WithSink, how many arrived. Without a
// sink, the receiver's stack gets them.
func (i *Injector) Send(from *netlab.Host, frame []byte, count uint32) (ns float64, got uint64, err error) {
	before, err := i.arrived()
	if err != nil {
		return 0, 0, err
	}
	ns, err = Run(i.node, i.bpf.Programs["inject"], &ebpf.RunOptions{
		Data: frame, Repeat: count, Flags: LiveFrames, BatchSize: liveBatch,
		Context: XDPMD{DataEnd: uint32(len(frame)), IngressIfindex: uint32(from.OuterIndex())}})
	if err != nil {
		return 0, 0, err
	}
	after, err := i.arrived()
	return ns, after - before, err
}

// Run makes a test run in the node. The thread must be pinned; for milliseconds, no other thread may use the CPU. It
// divides the time of the system call, since the kernel's own result is truncated to nanoseconds.
func Run(node *netlab.Namespace, p *ebpf.Program, opts *ebpf.RunOptions) (ns float64, err error) {
	err = node.Do(func() error {
		return traffic.RunRealtime(func() error {
			start := time.Now()
			_, err := p.Run(opts)
			ns = float64(time.Since(start).Nanoseconds()) / float64(opts.Repeat)
			return err
		})
	})
	return ns, err
}
