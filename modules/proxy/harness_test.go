// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"

	"github.com/kerb-edge/kerb/internal/chain"
	"github.com/kerb-edge/kerb/internal/dataplane"
	"github.com/kerb-edge/kerb/internal/kerbabi"
	"github.com/kerb-edge/kerb/internal/pkgs/pkgstest"
	"github.com/kerb-edge/kerb/sdk"
	"github.com/kerb-edge/kerb/sdk/sdktest"
)

// module returns the package as the agent would deploy it.
func module(t testing.TB, constants map[string]any) dataplane.Module {
	t.Helper()
	p := pkgstest.Package(t)
	return dataplane.Module{
		BuiltIn: true,
		Name:    "proxy",
		ID:      chain.ShortHash(fmt.Append(nil, constants)),
		Spec: func(h chain.Hook) (*ebpf.CollectionSpec, error) {
			if h != chain.TC {
				return nil, nil
			}
			return p.Spec(string(h))
		},
		Settings:         sdk.Settings{Constants: constants},
		DeferredRedirect: p.DeferredRedirect,
	}
}

// kernel is a proxy loaded for both directions, but not attached. Frames have the interface of PROG_TEST_RUN.
type kernel struct {
	t         testing.TB
	loaded    *dataplane.Loaded
	egress    *ebpf.Program
	ingress   func() *ebpf.Program
	maps      sdk.Maps
	vips      uint32 // assigned numbers
	slots     uint32
	instances uint32
	locals    uint32
	on        uint32 // interface of packets, 0: testIfindex
}

// testIfindex is the default interface of PROG_TEST_RUN: lo.
const testIfindex = 1

func loadProxy(t testing.TB, constants map[string]any) *kernel {
	t.Helper()
	return load(t, module(t, constants))
}

// loadConfigured loads the proxy with a config.
func loadConfigured(t testing.TB, config string) *kernel {
	t.Helper()
	mod := module(t, nil)
	mod.Settings = compileConfig(t, config).Settings()
	return load(t, mod)
}

func load(t testing.TB, mod dataplane.Module) *kernel {
	t.Helper()
	sdktest.NeedRoot(t)
	l, err := dataplane.Load(chain.OnTCIngress, chain.Egress, mod)
	sdktest.Explain(t, err)
	t.Cleanup(l.Close)
	ingress := pkgstest.Relink(t, l, chain.Spec{Side: chain.OnTCEgress, Direction: chain.Ingress,
		Members: []chain.Member{{Name: mod.Name, ID: mod.ID}}})
	return &kernel{t: t, loaded: l, egress: l.Program, ingress: ingress, maps: l.Maps[mod.Name]}
}

// change sets the values of another config in the data plane without replacing the program.
func (k *kernel) change(c *config) {
	k.t.Helper()
	mod := module(k.t, nil)
	mod.Settings, mod.Values, mod.Fill = c.Settings(), chain.ShortHash(fmt.Append(nil, *c)), c.Fill
	if err := k.loaded.SetValues(mod); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kernel) put(name string, key, value any) {
	k.t.Helper()
	if err := k.maps[name].Put(key, value); err != nil {
		k.t.Fatalf("map %s: %v", name, err)
	}
}

// addInstance adds an instance with addresses of one or both families.
func (k *kernel) addInstance(localSlot uint32, addrs ...string) uint32 {
	k.t.Helper()
	k.instances++
	k.place(k.instances, 2, localSlot, addrs...)
	return k.instances
}

// place writes an instance's entry as a control plane would.
func (k *kernel) place(index, generation, localSlot uint32, addrs ...string) {
	k.t.Helper()
	var in instance
	if err := k.maps[mapInstances].Lookup(index, &in); err != nil {
		k.t.Fatal(err)
	}
	p := place{Local: localSlot}
	for _, s := range addrs {
		if a := addr(s); a.Is4() {
			p.Addr4 = a.As4()
		} else {
			p.Addr6 = addressOf(a)
		}
	}
	in.Place[generation&1] = p
	k.put(mapInstances, index, in)
	in.Generation = generation
	k.put(mapInstances, index, in)
}

func (k *kernel) setFlags(index, flags uint32) {
	k.t.Helper()
	var in instance
	if err := k.maps[mapInstances].Lookup(index, &in); err != nil {
		k.t.Fatal(err)
	}
	in.Flags = flags
	k.put(mapInstances, index, in)
}

// addLocal adds an interface.
func (k *kernel) addLocal(ifindex uint32, mac [6]byte, flags uint8) uint32 {
	k.t.Helper()
	k.locals++
	k.put(mapLocals, k.locals, local{Ifindex: ifindex, MAC: mac, Flags: flags})
	k.put(mapInterfaces, ifindex, k.locals)
	return k.locals
}

// addVIP adds a virtual address.
func (k *kernel) addVIP(a string, policy uint8, flags uint8, run ...uint32) uint32 {
	k.t.Helper()
	k.vips++
	first := k.slots
	for _, i := range run {
		k.put(mapSlots, k.slots, i)
		k.slots++
	}
	k.put(mapVIPs, addressOf(addr(a)), vip{ID: k.vips, First: first, Count: uint32(len(run)), Policy: policy,
		Flags: flags})
	return k.vips
}

func (k *kernel) addPort(vipID uint32, proto uint8, from, to uint16) {
	k.t.Helper()
	k.put(mapPorts, portKey{VIP: vipID, Port: portOf(from), Proto: proto}, portOf(to))
}

func (k *kernel) addRange(prefixes ...string) {
	k.t.Helper()
	var r addressRanges
	for _, s := range prefixes {
		p := netip.MustParsePrefix(s)
		bits := p.Bits()
		if p.Addr().Is4() {
			bits += 96
		}
		e := addressRange{Prefix: addressOf(p.Addr())}
		for i := range bits {
			e.Mask[i/8] |= 0x80 >> (i % 8)
		}
		r.Range[r.Count] = e
		r.Count++
	}
	half, err := k.maps.ActiveHalf()
	if err != nil {
		k.t.Fatal(err)
	}
	k.put(mapRanges, uint32(half), r)
}

// Actions of TC.
const (
	tcNext     = -1
	tcShot     = 2
	tcRedirect = 7
)

// result is the result of a test run.
type result struct {
	action int32
	frame  []byte
}

func (k *kernel) run(p *ebpf.Program, frame []byte) result {
	k.t.Helper()
	out := make([]byte, len(frame)+2048)
	opts := &ebpf.RunOptions{Data: frame, DataOut: out}
	if k.on != 0 {
		ctx := make([]byte, 192) // struct __sk_buff
		binary.NativeEndian.PutUint32(ctx[40:], k.on)
		opts.Context = ctx
	}
	ret, err := p.Run(opts)
	if err != nil {
		k.t.Fatal(err)
	}
	return result{int32(ret), opts.DataOut}
}

// out runs a frame from the service, in runs one to it.
func (k *kernel) out(frame []byte) result { k.t.Helper(); return k.run(k.egress, frame) }
func (k *kernel) in(frame []byte) result  { k.t.Helper(); return k.run(k.ingress(), frame) }

func (k *kernel) drops(reason kerbabi.DropReason) uint64 {
	k.t.Helper()
	d, err := k.loaded.Drops("proxy")
	if err != nil {
		k.t.Fatal(err)
	}
	return d[reason]
}

func (k *kernel) count(what uint32) uint64 {
	k.t.Helper()
	var perCPU []uint64
	if err := k.maps[mapCounts].Lookup(what, &perCPU); err != nil {
		k.t.Fatal(err)
	}
	var sum uint64
	for _, n := range perCPU {
		sum += n
	}
	return sum
}

// table returns all sessions of both tables.
func (k *kernel) table() map[flow]session {
	k.t.Helper()
	out := map[flow]session{}
	var key flow
	var value session
	for _, name := range []string{mapPending, mapSessions} {
		it := k.maps[name].Iterate()
		for it.Next(&key, &value) {
			out[key] = value
		}
		if err := it.Err(); err != nil {
			k.t.Fatal(err)
		}
	}
	return out
}

// forget removes an entry from its table.
func (k *kernel) forget(key flow) {
	k.t.Helper()
	for _, name := range []string{mapPending, mapSessions} {
		if err := remove(k.maps[name], name, key); err != nil {
			k.t.Fatal(err)
		}
	}
}

// readEvents returns a function that returns the next event.
func readEvents(t testing.TB, ring *ebpf.Map) func() (unknown, []byte) {
	t.Helper()
	rd, err := ringbuf.NewReader(ring)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rd.Close() })
	return func() (unknown, []byte) {
		t.Helper()
		rd.SetDeadline(time.Now().Add(30 * time.Second))
		record, err := rd.Read()
		if err != nil {
			t.Fatal(err)
		}
		var e unknown
		n, err := binary.Decode(record.RawSample, binary.NativeEndian, &e)
		if err != nil {
			t.Fatal(err)
		}
		return e, record.RawSample[n : n+int(e.Len)]
	}
}

// notEmulated skips tests that take too long on the emulated machines of the kernel matrix.
func notEmulated(t testing.TB) {
	t.Helper()
	if os.Getenv("KERB_MATRIX") != "" {
		t.Skip("takes too long in an emulated machine")
	}
}
