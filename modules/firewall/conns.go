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
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/kerb-edge/kerb/sdk"
)

// conn mirrors struct fw_conn.
type conn struct {
	Seen       uint64 // CLOCK_MONOTONIC in nanoseconds, to about a second
	Generation uint32
	State      uint8
	From       uint8
	Fins       uint8
	_          uint8
}

// key4 mirrors struct fw_key4, key6 struct fw_key6. Addresses and ports are in network byte order.
type key4 struct {
	Ifindex               uint32
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

func (c *conn) timeout(proto, kind uint8, t *timeouts) time.Duration {
	state := connPhase(c.State)
	switch {
	case kind != 0:
		return time.Duration(t.ICMP)
	case proto != protoTCP && state == phaseEstablished:
		return time.Duration(t.UDPStream)
	case proto != protoTCP:
		return time.Duration(t.UDP)
	case state >= phaseReset || c.Fins != 0:
		return time.Duration(t.TCPClosing)
	case state == phaseEstablished:
		return time.Duration(t.TCPEstablished)
	}
	return time.Duration(t.TCPSyn)
}

func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0 // Linux has the clock
	}
	return ts.Nano()
}

const connBatch = 1024

// eachConn calls do for the entries of a table until it returns false. Entries that come and go meanwhile may be missed
// or seen twice.
func eachConn[K interface{ id() connID }](m *ebpf.Map, do func(K, conn) bool) error {
	var cursor ebpf.MapBatchCursor
	keys, values := make([]K, connBatch), make([]conn, connBatch)
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			if !do(keys[i], values[i]) {
				return nil
			}
		}
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist):
			return nil
		case errors.Is(err, unix.ENOSPC): // a hash bucket is fuller than the batch is long
			keys, values = make([]K, 2*len(keys)), make([]conn, 2*len(keys))
		case err != nil:
			return err
		}
	}
}

// tableStats mirrors struct fw_table.
type tableStats struct{ Established, Full uint64 }

const sweepEvery = 10 * time.Second

// Run ages established connections: those that the data plane does not meet again itself.
func (f *Firewall) Run(ctx context.Context, live sdk.Live) {
	f.followAddresses(live)
	if !f.config.State.Enabled {
		return
	}
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if err := f.sweep(live); err != nil {
			slog.Warn("firewall: ageing of connections failed", "module", live.Module, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// sweep removes connections that are over, and those of interfaces that are gone.
func (f *Firewall) sweep(live sdk.Live) error {
	there := map[uint32]bool{}
	for _, i := range live.Interface() {
		there[i.Ifindex] = true
	}
	left4, err := sweepTable[key4](f, live.Maps, mapEstablished4, there)
	if err != nil {
		return err
	}
	left6, err := sweepTable[key6](f, live.Maps, mapEstablished6, there)
	if err != nil {
		return err
	}
	if _, err := sweepTable[key4](f, live.Maps, mapPending4, there); err != nil {
		return err
	}
	if _, err := sweepTable[key6](f, live.Maps, mapPending6, there); err != nil {
		return err
	}
	return correctCount(live.Maps, left4+left6)
}

// sweepTable returns how many entries are left.
func sweepTable[K interface{ id() connID }](f *Firewall, maps sdk.Maps, name string, there map[uint32]bool) (int, error) {
	m, err := maps.Get(name)
	if err != nil {
		return 0, err
	}
	now, left := monotonic(), 0
	var over []K
	err = eachConn(m, func(k K, c conn) bool {
		id := k.id()
		if !there[id.Ifindex] || now-int64(c.Seen) > int64(c.timeout(id.Proto, id.Kind, &f.config.State.Timeouts)) {
			over = append(over, k)
		} else {
			left++
		}
		return true
	})
	if err != nil {
		return 0, fmt.Errorf("read map %s: %w", name, err)
	}
	for _, k := range over {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return 0, fmt.Errorf("delete from map %s: %w", name, err)
		}
	}
	return left, nil
}

// correctCount sets the number of established connections to what a sweep has found. The data plane counts on meanwhile;
// what is off by that is put right by the next sweep.
func correctCount(maps sdk.Maps, established int) error {
	m, err := maps.Get(mapTable)
	if err != nil {
		return err
	}
	mem, err := unix.Mmap(m.FD(), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map %s: mmap: %w", mapTable, err)
	}
	defer unix.Munmap(mem)
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&mem[0])), uint64(established))
	return nil
}

func readStats(maps sdk.Maps) (tableStats, error) {
	var out tableStats
	m, err := maps.Get(mapTable)
	if err != nil {
		return out, err
	}
	return out, m.Lookup(uint32(0), &out)
}
