// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// conn mirrors struct fw_conn.
type conn struct {
	Seen       uint64  // CLOCK_MONOTONIC in nanoseconds, to about a second
	Generation uint32  // of the rules that allowed it
	State      uint8   // enum fw_state
	From       uint8   // direction of the first packet
	Fins       uint8   // bit per side, of entries that earlier versions of the module have left: 0 in new ones
	Flags      uint8   // FW_CONN_*
	Peer       [2]peer // of TCP
}

// peer mirrors struct fw_peer.
type peer struct {
	End, MaxEnd, MaxWin, Acked uint32 // in host byte order: see struct fw_peer; MaxWin 0: not seen yet
	Scale, Flags               uint8  // of its windows; FW_PEER_*
	_                          uint16
}

const (
	peerACKED = 1 << 0 // mirrors FW_PEER_ACKED
	peerFIN   = 1 << 2 // mirrors FW_PEER_FIN
)

// key4 mirrors struct fw_key4, key6 struct fw_key6. Addresses and ports are in network byte order.
type key4 struct {
	Ifindex               uint32 // of the service's interface, on the node's side
	Local, Remote         [4]byte
	LocalPort, RemotePort [2]byte
	Proto, Kind           uint8
	_                     uint16
}

type key6 struct {
	Ifindex               uint32
	Local, Remote         [16]byte
	LocalPort, RemotePort [2]byte
	Proto, Kind           uint8
	_                     uint16
}

// connID is a key of either family in terms of Go.
type connID struct {
	Ifindex       uint32
	Local, Remote netip.AddrPort
	Proto, Kind   uint8
}

func (k key4) id() connID {
	return connID{k.Ifindex, addrPort(k.Local[:], k.LocalPort), addrPort(k.Remote[:], k.RemotePort), k.Proto, k.Kind}
}

func (k key6) id() connID {
	return connID{k.Ifindex, addrPort(k.Local[:], k.LocalPort), addrPort(k.Remote[:], k.RemotePort), k.Proto, k.Kind}
}

func addrPort(addr []byte, port [2]byte) netip.AddrPort {
	a, _ := netip.AddrFromSlice(addr)
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port[:]))
}

var stateNames = [...]string{"new", "replied", "established", "reset", "closed"}

// Connection is a tracked connection as the API shows it.
type Connection struct {
	Service   string `json:"service,omitempty"`
	Interface string `json:"interface,omitempty"`
	Direction string `json:"direction"` // of the first packet
	Protocol  string `json:"protocol"`
	Local     string `json:"local"`  // the service's side
	Remote    string `json:"remote"` // port 0: the protocol has none; for ICMP the local port is the echo identifier
	State     string `json:"state"`  // new, replied, established, reset, closed
	Idle      string `json:"idle"`
}

// connPhase mirrors enum fw_state.
type connPhase int

const (
	phaseNew connPhase = iota
	phaseReplied
	phaseEstablished
	phaseReset
	phaseClosed
)

// hasFIN reports whether a side has sent FIN.
func (c *conn) hasFIN(side int) bool { return c.Peer[side].Flags&peerFIN != 0 || c.Fins>>side&1 != 0 }

// isClosed reports whether both sides have sent FIN and acknowledged the other one's. The data plane may not have found
// that out: each of two last acknowledgements, on two CPUs at once, may miss the other one.
func (c *conn) isClosed() bool {
	for side := range c.Peer {
		to := &c.Peer[1-side]
		if !c.hasFIN(side) || to.Flags&peerACKED == 0 || int32(c.Peer[side].End-to.Acked) > 0 {
			return false
		}
	}
	return true
}

// timeout returns how long a connection in its state may be idle. kind is not 0 for ICMP queries; UDP and other
// protocols count as streams once a reply was seen.
func (c *conn) timeout(proto, kind uint8, t *timeouts) time.Duration {
	state := connPhase(c.State)
	switch {
	case kind != 0:
		return time.Duration(t.ICMP)
	case proto != protoTCP && state == phaseEstablished:
		return time.Duration(t.UDPStream)
	case proto != protoTCP:
		return time.Duration(t.UDP)
	case state >= phaseReset || c.isClosed():
		return time.Duration(t.TCPClosing)
	case c.hasFIN(0) || c.hasFIN(1):
		return time.Duration(t.TCPHalfClosed)
	case state == phaseEstablished:
		return time.Duration(t.TCPEstablished)
	}
	return time.Duration(t.TCPSyn)
}

const connBatch = 256

// tableStats mirrors struct fw_table.
type tableStats struct {
	Established, Full, Opening  uint64
	Share, Common               uint32
	OpeningShare, OpeningCommon uint32
}

// usageStats mirrors struct fw_usage.
type usageStats struct{ Established, Opening, Since uint64 }

const (
	sweepEvery  = 10 * time.Second
	maxOpening  = 16384 // mirrors FW_OPENING
	assuredFrom = 2 * time.Second
)

// Run ages established connections, those that the data plane does not meet again itself, and takes what it reports.
func (g *running) Run(ctx context.Context) {
	defer g.log.stream.End()
	var work sync.WaitGroup
	defer work.Wait()
	if g.logs() {
		work.Go(func() { g.follow(ctx) })
	}
	g.followAddresses()
	if !g.config.State.Enabled {
		return
	}
	next := time.NewTimer(g.untilSweep())
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		if err := g.sweep(); err != nil {
			slog.Warn("firewall: ageing of connections failed", "module", g.live.Module, "error", err)
		}
		sweeps.Store(g.live.Module, time.Now())
		next.Reset(sweepEvery)
	}
}

// sweeps has the time of the last sweep of each module: map sets that differ in rules have the same tables, and
// each would sweep them when it starts.
var sweeps sync.Map

// untilSweep is how long the first sweep has time. Tables that are new, or shared by more interfaces than at the last
// sweep, need their quotas at once.
func (g *running) untilSweep() time.Duration {
	last, swept := sweeps.Load(g.live.Module)
	t, err := openTables(g.live.Maps)
	if !swept || err != nil {
		return 0
	}
	defer t.Close()
	if t.quotas() != g.quotas(len(g.newCensus())) {
		return 0
	}
	return sweepEvery - time.Since(last.(time.Time))
}

// census counts entries by interface. An interface without entries has a zero.
type census map[uint32]uint64

func (g *running) newCensus() census {
	out := census{}
	for _, i := range g.live.Attachments() {
		out[i.Ifindex] = 0
	}
	return out
}

func (c census) total() (n uint64) {
	for _, count := range c {
		n += count
	}
	return
}

// sweep removes connections that are over, and those of interfaces that are gone, and puts counters and quotas right.
func (g *running) sweep() error {
	established, opening, pending := g.newCensus(), g.newCensus(), g.newCensus()
	for _, t := range []struct {
		count census
		maps  [2]string
	}{
		{established, [2]string{mapEstablished4, mapEstablished6}},
		{opening, [2]string{mapOpening4, mapOpening6}},
		{pending, [2]string{mapPending4, mapPending6}},
	} {
		err := errors.Join(sweepTable[key4](g.Firewall, g.live.Maps, t.maps[0], t.count),
			sweepTable[key6](g.Firewall, g.live.Maps, t.maps[1], t.count))
		if err != nil {
			return err
		}
	}
	if err := sweepUsage(g.live.Maps, established, opening); err != nil {
		return err
	}
	return g.correctTable(g.live.Maps, established, opening)
}

// sweepTable adds what is left to the census, whose interfaces are those that exist.
func sweepTable[K interface{ id() connID }](f *Firewall, maps sdk.Maps, name string, count census) error {
	now := int64(sdk.Monotonic())
	var over []K
	err := sdk.EachElement(maps, name, connBatch, func(k K, c *conn) bool {
		id := k.id()
		if _, there := count[id.Ifindex]; !there ||
			now-int64(c.Seen) > int64(c.timeout(id.Proto, id.Kind, &f.config.State.Timeouts)) {
			over = append(over, k)
		} else {
			count[id.Ifindex]++
		}
		return true
	})
	if err != nil {
		return err
	}
	for _, k := range over {
		if err := maps.Delete(name, k); err != nil {
			return err
		}
	}
	return nil
}

// sweepUsage sets the interfaces' counters to what the sweep has found. What the data plane counts in the same moment
// is lost, and found by the next sweep.
func sweepUsage(maps sdk.Maps, established, opening census) error {
	m, err := maps.Get(mapUsage)
	if err != nil {
		return err
	}
	entries, ifindex, link := m.Iterate(), uint32(0), usageStats{}
	found := map[uint32]usageStats{}
	for entries.Next(&ifindex, &link) {
		found[ifindex] = link
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("read map %s: %w", mapUsage, err)
	}
	for ifindex, link := range found {
		var err error
		count := usageStats{established[ifindex], opening[ifindex], link.Since}
		if _, there := established[ifindex]; !there {
			err = m.Delete(ifindex)
		} else if count != link {
			err = m.Update(ifindex, count, ebpf.UpdateExist)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("update map %s: %w", mapUsage, err)
		}
	}
	return nil
}

// quota is what an interface may add to a table: half of the table is common to all, the other half is shared out
// evenly.
func quota(size uint32, interfaces int) (share, common uint32) {
	if interfaces <= 1 {
		return size, size
	}
	return max(1, size/2/uint32(interfaces)), size / 2
}

// quotas are those of both tables.
type quotas struct{ share, common, openingShare, openingCommon uint32 }

func (f *Firewall) quotas(interfaces int) (q quotas) {
	q.share, q.common = quota(f.config.State.MaxConnections, interfaces)
	q.openingShare, q.openingCommon = quota(maxOpening, interfaces)
	return
}

// tables is what the data plane reads and counts of the tables as a whole, mapped into memory.
type tables struct {
	memory []byte
	*tableStats
}

func openTables(maps sdk.Maps) (t tables, err error) {
	m, err := maps.Get(mapTable)
	if err != nil {
		return t, err
	}
	t.memory, err = unix.Mmap(m.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return t, fmt.Errorf("map %s: mmap: %w", mapTable, err)
	}
	t.tableStats = (*tableStats)(unsafe.Pointer(&t.memory[0]))
	return t, nil
}

func (t tables) Close() { _ = unix.Munmap(t.memory) }

func (t tables) quotas() quotas {
	return quotas{atomic.LoadUint32(&t.Share), atomic.LoadUint32(&t.Common), atomic.LoadUint32(&t.OpeningShare),
		atomic.LoadUint32(&t.OpeningCommon)}
}

// correctTable sets counters to what a sweep has found, and quotas to the number of interfaces. The data plane counts
// on meanwhile; the next sweep corrects what is off by that.
func (f *Firewall) correctTable(maps sdk.Maps, established, opening census) error {
	t, err := openTables(maps)
	if err != nil {
		return err
	}
	defer t.Close()
	atomic.StoreUint64(&t.Established, established.total())
	atomic.StoreUint64(&t.Opening, opening.total())
	q := f.quotas(len(established))
	atomic.StoreUint32(&t.Common, q.common)
	atomic.StoreUint32(&t.Share, q.share)
	atomic.StoreUint32(&t.OpeningCommon, q.openingCommon)
	atomic.StoreUint32(&t.OpeningShare, q.openingShare)
	return nil
}

// forgetUsage removes what is known of interfaces: when tracking begins again, connections that exist are picked up.
func forgetUsage(maps sdk.Maps) error {
	m, err := maps.Get(mapUsage)
	if err != nil {
		return err
	}
	for {
		var ifindex uint32
		err := m.NextKey(nil, &ifindex)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err == nil {
			err = m.Delete(ifindex)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("map %s: %w", mapUsage, err)
		}
	}
}

func readStats(maps sdk.Maps) (tableStats, error) {
	var out tableStats
	err := maps.Lookup(mapTable, uint32(0), &out)
	return out, err
}
